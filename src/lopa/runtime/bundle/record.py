"""JSON files of a bundle with schema and contract versions: strict reading and writing, and the files that they list.

The modules of manifest.json, costs, shape buckets and engine.json define their fields.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.files.stamp import Stamp, stamp_from_status
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json

Reasons = Iterator[tuple[str, str]]
"""Pairs of received and expected texts."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """First fields of every such JSON file of a bundle."""

    schema: int
    contract: int


Kind = TypeVar("Kind", bound=Record)
Check = Callable[[Kind], Reasons]
"""Condition that field types and ranges cannot express."""


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
) -> Kind:
    """Read and check the file at `path`. `what` names its kind in errors, e.g. "a cost table".

    Raises BadInputError like record_from_json, and if there is no such file.
    """
    text = bytes_from_file(path, expected=what, remedy=remedy)
    return record_from_json(text, kind, source=str(path), what=what, schema=schema, remedy=remedy, checks=checks)


def record_from_json(
    text: bytes,
    kind: type[Kind],
    *,
    source: str,
    what: str,
    schema: int,
    remedy: str,
    checks: Sequence[Check[Kind]],
    contracts: Sequence[int] = (CONTRACT_VERSION,),
) -> Kind:
    """Read and check `text`. `source` names it in errors. `schema` and `contracts` are the versions that it may have.

    Raises BadInputError for text that is not JSON, for another schema or contract version, and for missing, unknown or
    mistyped fields. The same holds for numbers out of range and for failed `checks`.
    """
    expected = "a JSON object with schema and contract"
    versions = value_from_json(text, _Versions, source=f"{source} is not {what}", expected=expected, remedy=remedy)
    for name, found, known in (
        ("schema", versions.schema, (schema,)),
        ("contract", versions.contract, contracts),
    ):
        if found not in known:
            raise BadInputError(
                f"{source} has {name} version {found}",
                expected=f"{name} version {' or '.join(map(str, known))}",
                remedy=f"update lopa-export, or {remedy}" if found > max(known) else remedy,
            )
    expected = f"the fields of schema version {schema}"
    record = value_from_json(text, kind, source=source, expected=expected, remedy=remedy)
    for check in checks:
        raise_first_reason(check(record), source=source, remedy=remedy)
    return record


def raise_first_reason(reasons: Reasons, *, source: str, remedy: str) -> None:
    """Raise BadInputError for the first of `reasons`, if any."""
    for received, expected in reasons:
        raise BadInputError(f"{source} has {received}", expected=expected, remedy=remedy)


def json_from_record(record: Record) -> bytes:
    """Return the record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def listed_file_path(folder: Path, name: str, *, whole: str, remedy: str) -> Path:
    """Return the path of file `name` (relative, forward slashes) in `folder`. `whole` names the folder in errors, e.g.
    "bundle".

    Raises BadInputError for a name that leaves the folder, also through a link, and for an invalid path.
    """
    expected = f"a relative path inside the {whole}"
    received = f"the {whole} {folder} names the file {name!r:.300}"
    with errors_as_bad_input(received, expected=expected, remedy=remedy):
        parts = PurePosixPath(name)
        path = folder.joinpath(*parts.parts)
        inside = any(path.resolve().is_relative_to(each) for each in _folders_of_files(folder.resolve()))
        if parts.is_absolute() or ".." in parts.parts or not inside:
            raise BadInputError(received, expected=expected, remedy=f"do not use this {whole}; {remedy}")
    return path


def _folders_of_files(folder: Path) -> tuple[Path, ...]:
    """Return the folders that may contain the targets of links in `folder`: itself, and in the Hub's cache the blobs.

    A snapshot at CACHE/models--ORG--NAME/snapshots/COMMIT has links to the blobs of its repository, which may in turn
    be links to those that all repositories share.
    """
    if folder.parent.name != "snapshots" or not folder.parents[1].name.startswith("models--"):
        return (folder,)
    return (folder, folder.parents[1] / "blobs", folder.parents[2] / "blobs")


def check_listed_file(folder: Path, name: str, size: int, *, whole: str, remedy: str) -> Stamp:
    """Return the stamp of `name`. Raise BadInputError unless it is a regular file of `size` bytes inside `folder`."""
    path = listed_file_path(folder, name, whole=whole, remedy=remedy)
    expected = f"a file of {size} bytes, as listed by the {whole}"
    with errors_as_bad_input(f"{path!s:.300}", expected=expected, remedy=remedy):
        found = path.stat() if path.is_file() else None
    if found is None or found.st_size != size:
        raise BadInputError(
            f"{path} " + ("is missing" if found is None else f"has {found.st_size} bytes"),
            expected=expected,
            remedy=remedy,
        )
    return stamp_from_status(found)
