"""Text from standard input. It must be UTF-8 in every locale; other bytes raise BadInputError."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lopa.runtime.errors import errors_as_bad_input

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
    text = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="strict")
    try:
        with errors_as_bad_input(
            "standard input", expected="text in UTF-8", remedy="convert it first, e.g. iconv -f LATIN1 -t UTF-8"
        ):
            yield text
    finally:
        text.detach()  # otherwise standard input would be closed with it
