"""The sequence of one request: its blocks, its branches, and the windows of them that a forward is asked. Pure.

`layout` says where blocks lie, `blocks` what states they go through, `branches` keeps one hypothesis. `opened` says
which positions may be decided now, `reach` which rows a round computes and keeps; `windows` makes the arrays of one
request, `shared_rows` one window of them without repeated rows, `packing` one batch of all that share a forward, and
cuts its answer back into `row_statistics`.
"""
