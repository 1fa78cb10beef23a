"""Reads the JSON objects of a checkpoint folder, and their values by name and type. Does not know what they mean."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import MAX_JSON_BYTES, bytes_from_file, object_from_json

MAX_NUMBER = 2**31 - 1
"""No size, count or id of a model is beyond 32 bits with a sign."""
_DEEPEST = 32
"""Objects and lists within each other; a checkpoint's files have four or five. Others print and write them again."""
_MAX_SHOWN = 200
"""Characters of a value in an error."""


def json_object_from_file(path: Path, *, remedy: str, max: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in `path`, of at most `most` bytes.

    Raises BadInputError, with `remedy`, for a file that is missing, unreadable, not JSON or not an object, and for one
    that is nested so deeply that it cannot be shown or written again.
    """
    words = {"expected": "a JSON object in a readable file", "remedy": remedy}
    value = object_from_json(bytes_from_file(path, max=max, **words), source=str(path), **words)
    if _is_deep(value):
        raise BadInputError(f"{path} is nested too deeply", **words)
    return value


def shown(value: object) -> str:
    """A value of a checkpoint's JSON as an error shows it: its beginning."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


@dataclass(frozen=True)
class JsonValues:
    """An object of a checkpoint's JSON, whose values are asked for by name and type.

    Every method raises BadInputError, naming the file, for a value of another type or outside its range; null is as
    good as absent.
    """

    values: dict[str, Any]
    source: str
    """The file, as errors name it."""
    remedy: str

    def check_int(self, name: str, *, min: int = 1, max: int = MAX_NUMBER) -> int:
        """A number that has to be there."""
        return self.whole(name, self.values.get(name), min=min, max=max)

    def number(self, name: str, *, min: float, max: float) -> float:
        """A number that has to be there, whole or not."""
        return self.real(name, self.values.get(name), min=min, max=max)

    def flag(self, name: str) -> bool:
        """False when it is absent."""
        value = self.values.get(name)
        if not isinstance(value, bool | None):
            raise self.refused(name, value, "true or false")
        return bool(value)

    def texts(self, name: str, *, max: int) -> tuple[str, ...]:
        """A list of at most `most` texts; empty when it is absent."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > max or not all(isinstance(text, str) for text in value):
            raise self.refused(name, value, f"a list of at most {max} texts")
        return tuple(value)

    def table(self, name: str, *, max: int) -> dict[str, Any]:
        """An object of at most `most` names, with any values; empty when it is absent."""
        value = self.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > max:
            raise self.refused(name, value, f"an object of at most {max} names")
        return value

    def whole(self, name: str, value: object, *, min: int = 1, max: int = MAX_NUMBER) -> int:
        """`value`, which was found under `name`, as a whole number."""
        if not isinstance(value, int) or isinstance(value, bool) or not min <= value <= max:
            raise self.refused(name, value, f"a whole number from {min} to {max}")
        return value

    def real(self, name: str, value: object, *, min: float, max: float) -> float:
        """`value`, which was found under `name`, as a number of any kind that is finite."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not min <= value <= max:
            raise self.refused(name, value, f"a number from {min:g} to {max:g}")
        return float(value)

    def refused(self, name: str, value: object, expected: str) -> BadInputError:
        """The error for what was found under `name`."""
        return BadInputError(f"{self.source} has {name} = {shown(value)}", expected=expected, remedy=self.remedy)


def _is_deep(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
