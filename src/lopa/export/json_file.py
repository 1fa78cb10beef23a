"""JSON objects of a checkpoint folder, read by name and type."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import MAX_JSON_BYTES, bytes_from_file, is_deep, object_from_json

MAX_NUMBER = 2**31 - 1
"""Upper limit of sizes, counts and ids, which fit into signed 32-bit integers."""
_MAX_DEPTH = 32
"""Maximum levels of nested objects and lists. Checkpoint files have four or five. Printing many more may exceed
Python's recursion limit.
"""
_MAX_SHOWN = 200
"""Maximum characters of a value in an error."""


def json_object_from_file(path: Path, *, remedy: str, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the JSON object in the file `path`.

    Raises BadInputError with `remedy` for a file that is missing, unreadable, larger than `max_bytes`, not JSON or not
    an object. Raises it also for objects that are nested too deeply to print.
    """
    hints: dict[str, Any] = {"expected": "a JSON object in a readable file", "remedy": remedy}
    value = object_from_json(bytes_from_file(path, max=max_bytes, **hints), source=str(path), **hints)
    if is_deep(value, _MAX_DEPTH):
        raise BadInputError(f"{path} is nested too deeply", **hints)
    return value


def shown(value: object) -> str:
    """Return the beginning of a value's repr, for error messages."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


@dataclass(frozen=True)
class JsonValues:
    """Typed access to the values of a JSON object in a checkpoint.

    Every method raises BadInputError, which names the file, for a value of another type or outside its range. null
    counts as absent.
    """

    values: dict[str, Any]
    source: str
    """File name for error messages."""
    remedy: str

    def get_int(self, name: str, *, min: int = 1, max: int = MAX_NUMBER) -> int:
        """Return a required integer."""
        return self.checked_int(name, self.values.get(name), min=min, max=max)

    def get_float(self, name: str, *, min: float, max: float) -> float:
        """Return a required number, integer or not."""
        return self.checked_float(name, self.values.get(name), min=min, max=max)

    def get_bool(self, name: str) -> bool:
        """Return a boolean; False when it is absent."""
        value = self.values.get(name)
        if not isinstance(value, bool | None):
            raise self.error_for(name, value, "true or false")
        return bool(value)

    def get_ints(self, name: str, *, max_count: int, min: int = 0, max: int = MAX_NUMBER) -> tuple[int, ...]:
        """Return a list of at most `max_count` integers; empty when it is absent."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > max_count:
            raise self.error_for(name, value, f"a list of at most {max_count} whole numbers")
        return tuple(self.checked_int(name, each, min=min, max=max) for each in value)

    def without(self, name: str) -> "JsonValues":
        """Return the same object without the entry `name`."""
        return replace(self, values={each: value for each, value in self.values.items() if each != name})

    def get_strings(self, name: str, *, max_count: int) -> tuple[str, ...]:
        """Return a list of at most `max_count` strings; empty when it is absent."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > max_count or not all(isinstance(text, str) for text in value):
            raise self.error_for(name, value, f"a list of at most {max_count} strings")
        return tuple(value)

    def get_object(self, name: str, *, max_count: int) -> dict[str, Any]:
        """Return an object of at most `max_count` names with any values; empty when it is absent."""
        value = self.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > max_count:
            raise self.error_for(name, value, f"an object of at most {max_count} names")
        return value

    def checked_int(self, name: str, value: object, *, min: int = 1, max: int = MAX_NUMBER) -> int:
        """Return `value`, found under `name`, if it is an integer in the range."""
        if not isinstance(value, int) or isinstance(value, bool) or not min <= value <= max:
            raise self.error_for(name, value, f"a whole number from {min} to {max}")
        return value

    def checked_float(self, name: str, value: object, *, min: float, max: float) -> float:
        """Return `value`, found under `name`, as a float if it is a finite number in the range."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not min <= value <= max:
            raise self.error_for(name, value, f"a number from {min:g} to {max:g}")
        return float(value)

    def error_for(self, name: str, value: object, expected: str) -> BadInputError:
        """Return the error for a bad value found under `name`."""
        return BadInputError(f"{self.source} has {name} = {shown(value)}", expected=expected, remedy=self.remedy)
