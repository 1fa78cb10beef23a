"""The command that measures: bench, and each of its benchmarks in a file of its own."""
