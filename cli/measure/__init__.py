"""The command that measures: bench."""
