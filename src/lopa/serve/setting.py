"""Settings of a server: fields of frozen records, each with its default, range, help and name in one place.

Every front end reads them here: the command line, Ray's arguments and Triton's config.pbtxt. A value may be a text.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lopa.runtime.checked_values import MAX_SECONDS, check_choice, check_float, check_int, shown
from lopa.runtime.errors import BadInputError

DEVICE, QUALITY, LOAD, ACCESS = "Device", "Speed and quality", "Load and limits", "Address and access"
"""Groups of settings in the help of commands."""
_Record = TypeVar("_Record", bound="SettingsRecord")


@dataclass(frozen=True)
class ServerSetting:
    """One setting, as the metadata of a record's field."""

    default: Any
    check: Callable[[str, Any], Any]
    """Returns the value of a name and a value or its text. Raises BadInputError."""
    kind: str
    """Name of the value in the help of commands."""
    help: str
    flag: str = ""
    """Name on the command line and in Ray's arguments, if it is not the field's name."""
    group: str = LOAD
    is_advanced: bool = False
    default_text: str = ""
    """Description of a default that is None or an empty list."""
    is_http: bool = False
    """True for a setting of HTTP servers, in whose place Triton has options of its own."""
    words: Sequence[str] = ()
    """Values that a shell completes."""

    def read(self, name: str, value: Any) -> Any:
        """Return the checked value of a value or a text. Raises BadInputError that begins with `name`."""
        if self.default is None and value is None:
            return None
        return self.check(name, value)


class SettingsRecord:
    """Base of the records of settings. It checks all fields at construction."""

    def __post_init__(self) -> None:
        for name, each in settings_of(type(self)).items():
            object.__setattr__(self, name, each.read(each.flag or name, getattr(self, name)))


def settings_of(record: type[SettingsRecord]) -> dict[str, ServerSetting]:
    """Return the settings of a record by the names of their fields."""
    return {each.name: each.metadata["setting"] for each in fields(record) if each.metadata}  # type: ignore[arg-type]


def flags_of(record: type[SettingsRecord]) -> dict[str, str]:
    """Return the fields of a record by their names on the command line and in Ray's arguments."""
    return {each.flag or name: name for name, each in settings_of(record).items()}


def record_from_values(
    record: type[_Record], values: Mapping[str, Any], names: Mapping[str, str], others: Sequence[str], place: str
) -> _Record:
    """Return the record of a front end's values or texts. Raises BadInputError for an unknown name or a bad value.

    `names` has the fields by the front end's names, and `others` its further names, for the error. `place` says where a
    user can correct a value, e.g. "in config.pbtxt".
    """
    settings, known = settings_of(record), (*others, *names)
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise BadInputError(
                f"unknown setting {shown(name)}",
                expected="one of " + ", ".join(known),
                remedy=f"did you mean {near[0]}? Correct it {place}" if near else f"correct or remove it {place}",
            )
    try:
        return record(**{names[name]: settings[names[name]].read(name, value) for name, value in values.items()})
    except BadInputError as error:
        raise error.with_remedy(f"{error.remedy} {place}") from error


def setting(default: Any, check: Callable[[str, Any], Any], kind: str, text: str, **shown: Any) -> Any:
    """Return the field of a setting, whose help is `text`. `shown` has further attributes of ServerSetting."""
    return field(default=default, metadata={"setting": ServerSetting(default, check, kind, text, **shown)})


def int_setting(default: int | None, min: int, max: int, text: str, **shown: Any) -> Any:
    """Return the field of a whole number."""
    check = partial(check_int, min=min, max=max)
    return setting(default, lambda name, value: check(name, _number_from(value)), "INTEGER", text, **shown)


def float_setting(
    default: float | None, text: str, *, max: float = MAX_SECONDS, above: bool = True, **shown: Any
) -> Any:
    """Return the field of a number, usually in seconds, which is at least 0 or above it."""
    check = partial(check_float, min=0.0, max=max, above=above)
    return setting(default, lambda name, value: check(name, _number_from(value)), "SECONDS", text, **shown)


def choice_setting(words: Sequence[str], text: str, **shown: Any) -> Any:
    """Return the field of one of `words`, or None."""
    return setting(None, partial(check_choice, words=words), f"[{'|'.join(words)}]", text, words=words, **shown)


def check_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return a list of texts, also from one text with commas. Raises BadInputError."""
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) for each in texts):
        expected = "a list of texts, or one text with commas"
        raise BadInputError(f"invalid {name} {shown(value)}", expected=expected, remedy=f"correct {name}")
    return tuple(each.strip() for each in texts)


def check_path(name: str, value: Any) -> Path:
    """Return a path, also from its text. Raises BadInputError."""
    if not isinstance(value, str | Path):
        raise BadInputError(f"invalid {name} {shown(value)}", expected="a path", remedy=f"correct {name}")
    return Path(value)


def _number_from(value: Any) -> Any:
    """Return the number in a text, and a whole float as an int. Other values are returned unchanged."""
    if isinstance(value, str):
        for parse in (int, float):
            try:
                value = parse(value)
                break
            except ValueError:
                continue
    return int(value) if isinstance(value, float) and value.is_integer() else value
