"""engine.json beside what a builder made, in a folder of a bundle's engines/: what all kinds of engines have in common.

Knows no kind: what else the file says is the business of ascend_manifest and tensorrt_manifest.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.errors import BadInputError
from lopa.runtime.manifest import FileRecord

ENGINES_FOLDER = "engines"
ENGINE_NAME = "engine.json"


class EngineFile(Protocol):
    """What every engine.json has, beside the numbers schema and contract."""

    @property
    def files(self) -> Sequence[FileRecord]:
        """Everything but engine.json, relative to the engine's folder."""


Engine = TypeVar("Engine", bound=EngineFile)


def folders_of_engines(bundle: Bundle, prefix: str) -> list[Path]:
    """The folders in the bundle's engines/ whose names begin so, by name, whatever is in them."""
    folders = (bundle.path / ENGINES_FOLDER).glob(f"{prefix}*")
    return sorted(folder for folder in folders if folder.is_dir())


def description_from_folder(folder: Path, kind: type[Engine], schema: int, remedy: str) -> Engine:
    """Read engine.json and check that its files are there, with their sizes, not their digests.

    Raises BadInputError with `remedy` when it cannot be read, is of another schema or contract, or is not whole.
    """
    path = folder / ENGINE_NAME
    try:
        text = path.read_bytes()
        versions = msgspec.json.decode(text, type=_Versions)
        for name, found, known in (
            ("schema", versions.schema, schema),
            ("contract", versions.contract, CONTRACT_VERSION),
        ):
            if found != known:
                raise BadInputError(f"{path} has {name} version {found}", expected=f"version {known}", remedy=remedy)
        engine = msgspec.json.decode(text, type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadInputError(f"{path}: {error}", expected="the description of an engine", remedy=remedy) from error
    for record in engine.files:
        _check_file(folder, record, remedy)
    return engine


def text_of_engine(engine: EngineFile) -> bytes:
    """The text of engine.json, indented for readers."""
    return msgspec.json.format(msgspec.json.encode(engine), indent=2) + b"\n"


class _Versions(msgspec.Struct):
    schema: int
    contract: int


def _check_file(folder: Path, record: FileRecord, remedy: str) -> None:
    path = folder / record.path
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadInputError(
            f"{folder / ENGINE_NAME} names the file {record.path!r}",
            expected="a relative path inside the engine's folder",
            remedy=f"do not use this engine; {remedy}",
        )
    found = path.stat().st_size if path.is_file() else None
    if found != record.size:
        raise BadInputError(
            f"{path} " + ("is missing" if found is None else f"has {found} bytes"),
            expected=f"a file of {record.size} bytes, as {ENGINE_NAME} says",
            remedy=remedy,
        )
