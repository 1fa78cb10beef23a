"""engine.json beside what a builder made, in a folder of a bundle's engines/: what all kinds of engines have in common.

Knows no kind: what else the file says is the business of ascend.manifest and tensorrt.manifest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from msgspec import Meta

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.listed_file import check_listed_file
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import Reasons, Record, record_from_file, refuse_for
from lopa.runtime.errors import BadInputError

ENGINES_FOLDER = "engines"
ENGINE_NAME = "engine.json"


class EngineFile(Record, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every engine.json says."""

    made: str
    """ISO date and time."""
    graph_sha256: str
    """Of the graph that was compiled."""
    weights_sha256: str
    """Of the bundle's weights."""
    cache_key: str
    """sha256 over all that decides what is built."""
    files: Annotated[list[FileRecord], Meta(max_length=4096)]
    """Everything but engine.json, relative to the engine's folder."""


Engine = TypeVar("Engine", bound=EngineFile)


@dataclass(frozen=True)
class StoredEngine(Generic[Engine]):
    """An engine on disk."""

    folder: Path
    engine: Engine

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.name

    def fits(self, bundle: Bundle) -> bool:
        """Whether it was made of this bundle's weights."""
        return self.engine.weights_sha256 == bundle.manifest.weights_digest


@dataclass(frozen=True)
class EngineKind(Generic[Engine]):
    """The engines of one builder: what their folders are called, and how their descriptions are read."""

    prefix: str
    """Of the folders' names."""
    description: type[Engine]
    schema: int
    remedy: str
    """When one cannot be used: the command that builds it again."""
    check: Callable[[Engine], Reasons]

    def folder(self, bundle: Bundle, name: str) -> Path:
        """Where the engine for what `name` names lies."""
        return bundle.path / ENGINES_FOLDER / f"{self.prefix}{name}"

    def folders(self, bundle: Bundle) -> list[Path]:
        """Those that the bundle has, by name, whatever is in them."""
        folders = (bundle.path / ENGINES_FOLDER).glob(f"{self.prefix}*")
        return sorted(folder for folder in folders if folder.is_dir())

    def read(self, folder: Path) -> StoredEngine[Engine]:
        """Read and check an engine; that its files are there, with their sizes, not their digests.

        Raises BadInputError when it cannot be read, is of another schema or contract, or is not whole.
        """
        path, what = folder / ENGINE_NAME, "the description of an engine"
        engine = record_from_file(path, self.description, what=what, schema=self.schema, remedy=self.remedy)
        for record in engine.files:
            check_listed_file(folder, record.path, record.size, whole="engine", remedy=self.remedy)
        refuse_for(self.check(engine), source=str(path), remedy=self.remedy)
        return StoredEngine(folder, engine)

    def with_key(self, folder: Path, cache_key: str) -> StoredEngine[Engine] | None:
        """The engine in `folder` if it can be read and was made from the same things."""
        try:
            found = self.read(folder)
        except BadInputError:  # it is going to be replaced
            return None
        return found if found.engine.cache_key == cache_key else None
