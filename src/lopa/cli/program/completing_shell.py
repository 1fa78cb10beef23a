"""What a shell that completes a command line asks of this program. Knows no commands."""

import os

PROGRAM = "lopa-export"
COMPLETE_VARIABLE = "_LOPA_EXPORT_COMPLETE"
"""In the environment of a shell that asks what can be typed next."""


def completion_asked() -> str | None:
    """What a completing shell asks of this process, or None."""
    return os.environ.get(COMPLETE_VARIABLE) or None
