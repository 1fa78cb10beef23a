"""GPU report: one command for all measurements on a machine with a GPU."""
