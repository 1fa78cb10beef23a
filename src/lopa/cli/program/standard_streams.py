"""The three standard streams of the process: each open, none that fails at a character, flushed at the end."""

import codecs
import os
import sys
from typing import TextIO

ESCAPED = "lopa-escaped"
"""The error handler that writes what an encoding lacks as \\uXXXX, which JSON reads as the character."""
_FAILING = ("strict", "surrogateescape")


def open_streams() -> None:
    """Let closed streams be open and every character be printable.

    Without this the first file that is opened would take the number of a closed stream, and be written by whoever
    prints. What is written to a closed standard output fails as it would without us; closed standard error is lost.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    codecs.register_error(ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in _FAILING and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ESCAPED)


def failure_of_output() -> OSError | None:
    """Why standard output takes no more, or None when all that was written is out."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def drop_unwritten() -> None:
    """Let what a broken stream still holds go nowhere, so that the interpreter can flush it when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _point_nowhere(stream)


def _point_nowhere(stream: TextIO) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # a stream without a number, or closed: nothing is flushed of it


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end
