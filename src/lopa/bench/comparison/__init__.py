"""Comparison of decoding options on the same questions: `bench quality` and `tune`.

`decodes` decodes questions with configurations, each once, and `outcomes` keeps the results on disk. Intervals and
tests are in `paired_statistics`. `variants` are the configurations of `bench quality`, and `candidates` those of
`tune`.
"""
