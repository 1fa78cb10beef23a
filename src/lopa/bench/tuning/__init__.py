"""Search for the fastest decoding options whose score is not lower than that of the defaults.

`candidates` lists the options. `ladder` decides which of them to measure, and which to choose. `tuning_decodes` decodes
the questions on demand. `tuning_run` connects the three. The rest describes the result.
"""
