"""Comparison of our CPU forwards with those of other runtimes on the same random checkpoint."""
