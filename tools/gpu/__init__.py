"""The GPU report: one command that measures everything on a machine with a GPU."""
