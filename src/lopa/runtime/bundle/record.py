"""A JSON file of a bundle that says of which schema and contract it is: how each kind is read strictly, and written.

Knows no kind: what manifest.json, costs, buckets and engine.json say is the business of their modules.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json

Reasons = Iterator[tuple[str, str]]
"""What was received, and what was expected."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every such file begins with."""

    schema: int
    contract: int


Kind = TypeVar("Kind", bound=Record)
Check = Callable[[Kind], Reasons]
"""What types and ranges of the fields cannot say."""


class _Versions(msgspec.Struct):
    schema: int
    contract: int


def record_from_file(
    path: Path,
    kind: type[Kind],
    *,
    what: str,
    schema: int,
    remedy: str,
    checks: Sequence[Check[Kind]] = (),
    former_keys: Mapping[str, str] | None = None,
) -> Kind:
    """Read the file at `path` as record_from_json does. `what` names its kind in errors, e.g. "a cost table".

    `former_keys` maps keys of earlier versions to the current ones. Raises BadInputError for a missing file too.
    """
    text = bytes_from_file(path, expected=what, remedy=remedy)
    if former_keys:
        text = _with_current_keys(text, former_keys)
    return record_from_json(text, kind, source=str(path), what=what, schema=schema, remedy=remedy, checks=checks)


def record_from_json(
    text: bytes, kind: type[Kind], *, source: str, what: str, schema: int, remedy: str, checks: Sequence[Check[Kind]]
) -> Kind:
    """Read and check `text`; `source` names it in errors, `schema` is the version that `kind` is.

    Raises BadInputError for text that is not JSON, another schema or contract version, missing, unknown or mistyped
    fields, numbers out of their range, and for what one of `checks` has a reason against.
    """
    expected = "a JSON object with schema and contract"
    versions = value_from_json(text, _Versions, source=f"{source} is not {what}", expected=expected, remedy=remedy)
    for name, found, known in (
        ("schema", versions.schema, schema),
        ("contract", versions.contract, CONTRACT_VERSION),
    ):
        if found != known:
            raise BadInputError(
                f"{source} has {name} version {found}",
                expected=f"{name} version {known}",
                remedy=f"update lopa-export, or {remedy}" if found > known else remedy,
            )
    expected = f"the fields of schema version {schema}"
    record = value_from_json(text, kind, source=source, expected=expected, remedy=remedy)
    for check in checks:
        refuse_for(check(record), source=source, remedy=remedy)
    return record


def _with_current_keys(text: bytes, former_keys: Mapping[str, str]) -> bytes:
    """Return the JSON object `text` with its former keys renamed; other text unchanged, for its reader to refuse."""
    try:
        values = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return text
    if former_keys.keys().isdisjoint(values):
        return text
    return msgspec.json.encode({former_keys.get(key, key): value for key, value in values.items()})


def refuse_for(reasons: Reasons, *, source: str, remedy: str) -> None:
    """Raise BadInputError for the first of `reasons`, if there is one."""
    for received, expected in reasons:
        raise BadInputError(f"{source} has {received}", expected=expected, remedy=remedy)


def json_from_record(record: Record) -> bytes:
    """The text of such a file, indented for readers."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
