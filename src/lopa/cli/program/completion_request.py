"""The environment variable with which a shell requests completions. This module imports no command."""

import os

PROGRAM = "lopa-export"
COMPLETE_VARIABLE = "_LOPA_EXPORT_COMPLETE"
"""Name of the variable, which the completion script sets."""


def requested_completion() -> str | None:
    """Return the shell's instruction, such as "bash_complete", or None if no shell requests completions."""
    return os.environ.get(COMPLETE_VARIABLE) or None
