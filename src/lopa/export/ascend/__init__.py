"""Build of engines with Ascend's compiler ATC."""
