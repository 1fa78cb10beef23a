"""Lines of a file of prompts, read as a stream but not parsed."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lopa.runtime.errors import errors_as_bad_input

STANDARD_INPUT = Path("-")
MAX_LINE_BYTES = 16 * 2**20
"""Maximum bytes of a line. A prompt of a million ids takes about 8 MB."""
_BLOCK = 2**20
_DIGITS = 16
"""Hexadecimal digits of a digest: enough to distinguish lines, and short."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class RawLine:
    """A line that is not blank."""

    number: int
    """Line number from 1; blank lines count."""
    content: bytes | None
    """Bytes of the line, or None if it has more than MAX_LINE_BYTES."""
    digest: str
    """Digest of the line and of the options and files that determine its answer."""


@contextmanager
def open_prompts(path: Path) -> Iterator[BinaryIO]:
    """Open a file of prompts, or standard input for "-". Raises BadInputError when it cannot be read."""
    with _reading(path):
        file = os.fdopen(os.dup(0), "rb") if path == STANDARD_INPUT else path.open("rb")
    with file:
        yield file


def count_of_prompts(file: BinaryIO, path: Path) -> int | None:
    """Return the number of prompts left to read in a regular file; None for a stream, which can be read only once."""
    with _reading(path):
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        began, count, text = file.tell(), 0, False
        while piece := file.readline(_BLOCK):
            text = text or not piece.isspace()
            if piece.endswith(b"\n"):
                count, text = count + text, False
        file.seek(began)
        return count + text


def lines_of_prompts(file: BinaryIO, path: Path, decoded_with: bytes) -> Iterator[RawLine]:
    """Yield the lines as they arrive, one at a time in memory. `decoded_with` is part of every digest.

    Raises BadInputError when reading fails.
    """
    number = 0
    while piece := _piece(file, path, MAX_LINE_BYTES + 1):
        number += 1
        digest = hashlib.sha256(decoded_with)
        content: bytes | None = piece
        if len(piece) > MAX_LINE_BYTES and not piece.endswith(b"\n"):
            content = None
            digest.update(piece)
            while (piece := _piece(file, path, _BLOCK)) and not piece.endswith(b"\n"):
                digest.update(piece)
        if content is not None:
            content = (content.removeprefix(_BOM) if number == 1 else content).strip()
            if not content:
                continue
            digest.update(content)
        yield RawLine(number, content, digest.hexdigest()[:_DIGITS])


def _piece(file: BinaryIO, path: Path, limit: int) -> bytes:
    with _reading(path):
        return file.readline(limit)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    with errors_as_bad_input(
        str(path), expected="a file of JSON lines, or - for standard input", remedy="check the path"
    ):
        yield
