"""engine.json, the description of a built engine in a bundle's engines/ folder, with the fields that all engine kinds
share.

ascend.ascend_manifest and tensorrt.tensorrt_manifest add the fields of their kinds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from msgspec import Meta

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import Reasons, Record, check_listed_file, raise_first_reason, record_from_file
from lopa.runtime.errors import BadInputError

ENGINES_FOLDER = "engines"
ENGINE_NAME = "engine.json"


class EngineFile(Record, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of every engine.json."""

    made: str
    """Build date and time, in ISO format."""
    graph_sha256: str
    """SHA-256 of the compiled graph."""
    weights_sha256: str
    """SHA-256 of the bundle's weights."""
    cache_key: str
    """SHA-256 over everything that determines the build."""
    files: Annotated[list[FileRecord], Meta(max_length=4096)]
    """All files but engine.json, relative to the engine's folder."""


Engine = TypeVar("Engine", bound=EngineFile)


@dataclass(frozen=True)
class StoredEngine(Generic[Engine]):
    """An engine on disk: folder and description."""

    folder: Path
    engine: Engine

    @property
    def name(self) -> str:
        """Name of the engine's folder."""
        return self.folder.name

    def fits(self, bundle: Bundle) -> bool:
        """Return True if the engine was built from this bundle's weights."""
        return self.engine.weights_sha256 == bundle.manifest.weights_digest


@dataclass(frozen=True)
class EngineKind(Generic[Engine]):
    """Kind of engine, defined by its builder: the prefix of the folder names, and a reader for the descriptions."""

    prefix: str
    """Prefix of the folder names."""
    description: type[Engine]
    schema: int
    remedy: str
    """Command that builds an unusable engine again, for error texts."""
    check: Callable[[Engine], Reasons]

    def folder(self, bundle: Bundle, name: str) -> Path:
        """Return the folder of the engine `name`."""
        return bundle.path / ENGINES_FOLDER / f"{self.prefix}{name}"

    def folders(self, bundle: Bundle) -> list[Path]:
        """Return the bundle's engine folders of this kind by name, without reading them."""
        folders = (bundle.path / ENGINES_FOLDER).glob(f"{self.prefix}*")
        return sorted(folder for folder in folders if folder.is_dir())

    def read(self, folder: Path) -> StoredEngine[Engine]:
        """Read an engine's description and check that its files exist with their sizes. Digests are not checked.

        Raises BadInputError if the description is unreadable or incomplete, or if its schema or contract differs.
        """
        path, what = folder / ENGINE_NAME, "the description of an engine"
        engine = record_from_file(path, self.description, what=what, schema=self.schema, remedy=self.remedy)
        for record in engine.files:
            check_listed_file(folder, record.path, record.size, whole="engine", remedy=self.remedy)
        raise_first_reason(self.check(engine), source=str(path), remedy=self.remedy)
        return StoredEngine(folder, engine)

    def with_key(self, folder: Path, cache_key: str) -> StoredEngine[Engine] | None:
        """Return the engine in `folder` if it is readable and has this cache key, otherwise None."""
        try:
            found = self.read(folder)
        except BadInputError:  # an unreadable engine is built again
            return None
        return found if found.engine.cache_key == cache_key else None
