"""What strategies remember of a branch from step to step, each a frozen record of arrays by position. Pure.

`divergences` for klass, `credit` for credit, `schedule` for dream with the draws of positions. Knows no block.
"""
