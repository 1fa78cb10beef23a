"""Reading what somebody else wrote: bounded in size, and whatever goes wrong is one BadInputError.

Knows files and JSON in general, nothing of what they mean.
"""

import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from lopa.runtime.errors import BadInputError, LopaError

MAX_JSON_BYTES = 64 * 2**20
"""A manifest of 7 billion weights takes a few hundred kilobytes, the largest tokenizer known some twenty megabytes."""
_SHOWN = 300
"""Characters of what a library said."""

Kind = TypeVar("Kind")


@contextmanager
def refused_as_bad_input(received: str, *, expected: str, remedy: str) -> Iterator[None]:
    """Whatever the block raises becomes a BadInputError: `received`, and what was raised in words.

    Errors of our own pass as they are, and so does what is meant for the whole process (Ctrl-C, exit). Everything else
    is taken: a parser meets hostile input with errors of any kind (RecursionError, MemoryError), and a panic in a Rust
    extension is not even an Exception.
    """
    try:
        yield
    except (LopaError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise BadInputError(f"{received}: {said_by(error)}", expected=expected, remedy=remedy) from error


def said_by(error: BaseException) -> str:
    """What went wrong in one short text, never empty, that can be printed anywhere."""
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, RecursionError):
        text = "nested too deeply"
    text = str(text)[:_SHOWN].encode("utf-8", "backslashreplace").decode()
    return text or type(error).__name__


@contextmanager
def regular_file(path: Path, *, expected: str, remedy: str) -> Iterator[BinaryIO]:
    """A regular file, opened for reading; whatever the block raises is a BadInputError.

    So is what the operating system says, a file that does not exist, and what is no regular file (a FIFO would be
    waited for).
    """
    words = {"expected": expected, "remedy": remedy}
    with refused_as_bad_input(str(path), **words):
        try:
            is_regular = stat.S_ISREG(path.stat().st_mode)
        except FileNotFoundError as error:
            raise BadInputError(f"{path} does not exist", **words) from error
        if not is_regular:
            raise BadInputError(f"{path} is not a regular file", **words)
        with path.open("rb") as file:
            yield file


def bytes_from_file(path: Path, *, expected: str, remedy: str, max: int = MAX_JSON_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes; nothing is read of any other.

    Raises BadInputError for a larger one, for what is no regular file (a FIFO would be waited for), and for whatever
    the operating system says.
    """
    with regular_file(path, expected=expected, remedy=remedy) as file:
        content = file.read(max + 1)
    if len(content) > max:
        raise BadInputError(f"{path} has more than {max} bytes", expected=expected, remedy=remedy)
    return content


def value_from_json(text: bytes | str, kind: type[Kind], *, source: str, expected: str, remedy: str) -> Kind:
    """`text` read strictly as `kind`, with the ranges of its fields (msgspec.Meta).

    Raises BadInputError for everything that is not that; for a field that does not fit it says which, what it holds
    and what it should.
    """
    with refused_as_bad_input(source, expected=expected, remedy=remedy):
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.ValidationError as error:
            found = _value_that_was_refused(text, str(error))
            raise BadInputError(f"{source}: {error}{found}", expected=expected, remedy=remedy) from error


def _value_that_was_refused(text: bytes | str, said: str) -> str:
    """The scalar at the place in `text` that msgspec's message ends with, e.g. - at `$.files[2].size`.

    Empty where it names none, as below the keys of a mapping, which it leaves out.
    """
    place = re.search(r" - at `\$((?:\.\w+|\[\d+\])+)`$", said)
    if place is None:
        return ""
    value: Any = msgspec.json.decode(text)
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", place[1]):
        value = value[name or int(index)]
    return "" if isinstance(value, list | dict) else f", where it has {repr(value)[:_SHOWN]}"


def object_from_json(text: bytes | str, *, source: str, expected: str, remedy: str) -> dict[str, Any]:
    """The JSON object in `text`, of any content. Raises BadInputError for everything else."""
    return value_from_json(text, dict[str, Any], source=source, expected=expected, remedy=remedy)
