"""engine.json beside what a builder made, in a folder of a bundle's engines/: what all kinds of engines have in common.

Knows no kind: what else the file says is the business of ascend_manifest and tensorrt_manifest.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.listed_file import check_listed_file
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json

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
    path, expected = folder / ENGINE_NAME, "the description of an engine"
    text = bytes_from_file(path, expected=expected, remedy=remedy)
    versions = value_from_json(text, _Versions, source=str(path), expected=expected, remedy=remedy)
    for name, found, known in (
        ("schema", versions.schema, schema),
        ("contract", versions.contract, CONTRACT_VERSION),
    ):
        if found != known:
            raise BadInputError(f"{path} has {name} version {found}", expected=f"version {known}", remedy=remedy)
    engine = value_from_json(text, kind, source=str(path), expected=expected, remedy=remedy)
    for record in engine.files:
        check_listed_file(folder, record.path, record.size, whole="engine", remedy=remedy)
    return engine


def text_of_engine(engine: EngineFile) -> bytes:
    """The text of engine.json, indented for readers."""
    return msgspec.json.format(msgspec.json.encode(engine), indent=2) + b"\n"


class _Versions(msgspec.Struct):
    schema: int
    contract: int
