"""The standard streams of the process: all open, able to write every character, and flushed at the end."""

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

ESCAPED = "lopa-escaped"
"""Name of the error handler that writes a character outside the encoding as \\uXXXX, which JSON reads back."""
_FAILING = ("strict", "surrogateescape")


def open_streams() -> None:
    """Open closed streams and make every character printable.

    Otherwise the first file that is opened would take the descriptor of a closed stream, and prints would go to it.
    Writing to a closed standard output still fails. Text for a closed standard error is lost.
    """
    for number, name, flags in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the system takes the lowest free descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
    codecs.register_error(ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in _FAILING and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ESCAPED)


def failure_of_output() -> OSError | None:
    """Return the error of flushing standard output, or None when everything is written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def drop_unwritten() -> None:
    """Discard the unwritten text of a broken stream, so that the interpreter can flush it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _redirect_to_null(stream)


def _redirect_to_null(stream: TextIO) -> None:
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass  # the stream has no descriptor or is closed, so nothing is flushed


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end


MAX_CHARACTERS = 16 * 2**20
"""Maximum characters of one prompt, more than any model has positions."""


def text_from_stdin() -> str:
    """Return all of standard input. Raises BadInputError for text that is not UTF-8 or exceeds MAX_CHARACTERS."""
    with _utf8() as text:
        read = text.read(MAX_CHARACTERS + 1)
        if len(read) > MAX_CHARACTERS:
            raise ValueError(f"more than {MAX_CHARACTERS} characters")
        return read


def lines_from_stdin() -> Iterator[str]:
    """Yield lines as they arrive, without line ends. Raises BadInputError for text that is not UTF-8."""
    with _utf8() as text:
        for line in text:
            yield line.removesuffix("\n")


@contextmanager
def _utf8() -> Iterator[io.TextIOWrapper]:
    from lopa.runtime.errors import errors_as_bad_input  # slow to import

    text = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="strict")
    try:
        with errors_as_bad_input(
            "standard input", expected="text in UTF-8", remedy="convert it first, e.g. iconv -f LATIN1 -t UTF-8"
        ):
            yield text
    finally:
        text.detach()  # otherwise standard input would be closed with it
