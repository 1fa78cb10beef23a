"""Bounded reading of untrusted files and JSON. Every failure is a BadInputError."""

import json
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from lopa.runtime.errors import BadInputError, errors_as_bad_input

MAX_JSON_BYTES = 64 * 2**20
"""Maximum size of a JSON file, in bytes. A manifest of a 7B model takes a few hundred kilobytes, and the largest known
tokenizer about 20 MB.
"""
_MAX_DEPTH = 200
"""Maximum levels of nested objects and lists. Printing many more may exceed Python's recursion limit."""
_MAX_SHOWN = 300
"""Maximum number of characters of a rejected value in an error."""

Kind = TypeVar("Kind")


@contextmanager
def regular_file(path: Path, *, expected: str, remedy: str) -> Iterator[BinaryIO]:
    """Open a regular file for reading, and convert any exception of the block to BadInputError.

    Raises BadInputError also for a missing file, a file that is not regular (a FIFO would block) and OS errors.
    """
    texts = {"expected": expected, "remedy": remedy}
    with errors_as_bad_input(str(path), **texts):
        try:
            is_regular = stat.S_ISREG(path.stat().st_mode)
        except FileNotFoundError as error:
            raise BadInputError(f"{path} does not exist", **texts) from error
        if not is_regular:
            raise BadInputError(f"{path} is not a regular file", **texts)
        with path.open("rb") as file:
            yield file


def bytes_from_file(path: Path, *, expected: str, remedy: str, max: int = MAX_JSON_BYTES) -> bytes:
    """Return the content of a regular file of at most `max` bytes.

    Raises BadInputError for a larger file, a file that is not regular (a FIFO would block) and OS errors.
    """
    with regular_file(path, expected=expected, remedy=remedy) as file:
        content = file.read(max + 1)
    if len(content) > max:
        raise BadInputError(f"{path} has more than {max} bytes", expected=expected, remedy=remedy)
    return content


def value_from_json(text: bytes | str, kind: type[Kind], *, source: str, expected: str, remedy: str) -> Kind:
    """Decode `text` strictly as `kind`, with the ranges of its fields (msgspec.Meta).

    Raises BadInputError for anything else. For a field that does not match, the error names the field, its value and
    the allowed values.
    """
    with errors_as_bad_input(source, expected=expected, remedy=remedy):
        try:
            value = msgspec.json.decode(text, type=kind)
            if is_deep(value, _MAX_DEPTH):
                raise RecursionError
            return value
        except msgspec.ValidationError as error:
            found = _rejected_value(text, str(error))
            raise BadInputError(f"{source}: {error}{found}", expected=expected, remedy=remedy) from error


def is_deep(value: object, max_depth: int) -> bool:
    """Return whether `value` has more than `max_depth` levels of nested objects and lists."""
    level: list[Any] = [value] if isinstance(value, (dict, list)) else []
    for _ in range(max_depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _rejected_value(text: bytes | str, message: str) -> str:
    """Return the rejected scalar as text that continues msgspec's message, which ends with a JSON path.

    The path has a form such as "- at `$.files[2].size`". The result is empty for a list or an object, and if there is
    no such path, as below the keys of a mapping.
    """
    match = re.search(r" - at `\$((?:\.\w+|\[\d+\])+)`$", message)
    if match is None:
        return ""
    value: Any = msgspec.json.decode(text)
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", match[1]):
        value = value[name or int(index)]
    return "" if isinstance(value, list | dict) else f", where it has {repr(value)[:_MAX_SHOWN]}"


def object_from_json(
    text: bytes | str, *, source: str, expected: str, remedy: str, unique: bool = False
) -> dict[str, Any]:
    """Return the JSON object in `text`, with any content. Raises BadInputError for anything else.

    With `unique`, it does so also for an object that has a key twice, of which others may read the other value.
    """
    value = value_from_json(text, dict[str, Any], source=source, expected=expected, remedy=remedy)
    if unique:
        with errors_as_bad_input(source, expected=expected, remedy=remedy):
            json.loads(text, object_pairs_hook=_check_unique, parse_int=str)
    return value


def _check_unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"the key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} occurs twice")
