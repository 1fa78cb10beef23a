"""Batches of prompts from any source: parsing of a row, its answer as plain values, and runs on Ray Data.

`lopa-export generate --prompts` uses the first two for files. `ray_data` answers millions of rows on a cluster.
"""
