"""Lines of a file of prompts, or of its shard, read as a stream but not parsed; and the form of --chat."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import click

from lopa.runtime.chat.chat import Chat
from lopa.runtime.errors import errors_as_bad_input

STANDARD_INPUT = Path("-")
MAX_LINE_BYTES = 16 * 2**20
"""Maximum bytes of a line. A prompt of a million ids takes about 8 MB."""
_BLOCK = 2**20
_DIGITS = 16
"""Hexadecimal digits of a digest: enough to distinguish lines, and short."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ChatFormat:
    """Conversion of a text into a chat, with an optional system message."""

    system: str | None = None

    def chat(self, text: str) -> Chat:
        """Return `text` as a user's message, after the system message if there is one."""
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        return Chat([*before, {"role": "user", "content": text}])


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


MAX_SHARDS = 10**6


@dataclass(frozen=True)
class Shard:
    """Every `count`-th prompt, starting with prompt `number`, counted from 1. Blank lines do not count."""

    number: int = 1
    count: int = 1

    def lines(self, lines: Iterator[RawLine]) -> Iterator[RawLine]:
        """Return the lines of this shard. Line numbers refer to the complete file."""
        return islice(lines, self.number - 1, None, self.count)

    def size(self, total: int | None) -> int | None:
        """Return the number of prompts in this shard of a file with `total` prompts, or None if `total` is None."""
        return None if total is None else len(range(self.number - 1, total, self.count))


class ShardType(click.ParamType[Shard]):
    """Type of a shard, K/N on the command line."""

    name = "K/N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shard:
        """Return the shard for the text `value`. Raises BadParameter for any other text."""
        if isinstance(value, Shard):
            return value
        if found := re.fullmatch(r"([0-9]{1,7})/([0-9]{1,7})", value):
            number, count = map(int, found.groups())
            if 1 <= number <= count <= MAX_SHARDS:
                return Shard(number, count)
        text = f"{value!r} is not a shard: expected K/N with K from 1 to N and N at most {MAX_SHARDS}, e.g. 3/16"
        raise click.BadParameter(text, ctx, param)
