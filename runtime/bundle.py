"""A bundle on disk: its manifest and the way to its files. Does not know how one is made or run."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import msgspec

from lopa.runtime.errors import BadInputError
from lopa.runtime.manifest import MANIFEST_NAME, Dialect, FileRecord, Manifest, manifest_from_json


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: the folder and its checked manifest."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path | str) -> "Bundle":
        """Open the bundle at `path`: reads the manifest and checks that every file is there with its size.

        Raises BadInputError when something is missing, of another schema, or lies outside the folder. Digests are
        checked only by `altered_files`, since reading gigabytes is not part of opening.
        """
        folder = Path(path)
        manifest_path = folder / MANIFEST_NAME
        if not manifest_path.is_file():
            raise BadInputError(
                f"{folder} has no {MANIFEST_NAME}",
                expected="a bundle folder made by lopa-export onnx",
                remedy="check the path, or make one: lopa-export onnx CHECKPOINT -o BUNDLE",
            )
        bundle = cls(folder, manifest_from_json(manifest_path.read_bytes(), source=str(manifest_path)))
        for record in bundle.manifest.files:
            bundle._check_present(record)
        listed = {record.path for record in bundle.manifest.files}
        graphs = [bundle.manifest.graph, *(stage.graph for stage in bundle.manifest.stages)]
        graphs += [] if bundle.manifest.portable_graph is None else [bundle.manifest.portable_graph]
        for name in (*graphs, bundle.manifest.weights):
            if name not in listed:
                raise BadInputError(
                    f"{manifest_path} names {name!r}, which is not in its list of files",
                    expected="graphs and weights among the files",
                    remedy="export the checkpoint again",
                )
        return bundle

    @property
    def graph(self) -> Path:
        """The ONNX file, in the dialect that the manifest says."""
        return self.file(self.manifest.graph)

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """Those in which there is a graph, that of `graph` first."""
        second: tuple[Dialect, ...] = () if self.manifest.portable_graph is None else ("portable",)
        return (self.manifest.dialect, *second)

    def of_dialect(self, dialect: Dialect) -> "Bundle":
        """The same bundle with the graph of one dialect alone. Raises BadInputError when it has none."""
        if dialect not in self.dialects:
            raise BadInputError(
                f"{self.path} has only a graph in the {self.manifest.dialect} dialect",
                expected=f"a graph in the {dialect} dialect",
                remedy=f"export the checkpoint again with --dialect {dialect} or --dialect both",
            )
        graph = self.manifest.graph if dialect == self.manifest.dialect else self.manifest.portable_graph
        alone = msgspec.structs.replace(self.manifest, dialect=dialect, graph=graph, portable_graph=None)
        if dialect != "standard":
            alone = msgspec.structs.replace(alone, stages=[], plugins=[])  # which are of standard graphs
        return replace(self, manifest=alone)

    @property
    def weights(self) -> Path:
        """The file of external data, laid out by manifest.tensors."""
        return self.file(self.manifest.weights)

    def file(self, name: str) -> Path:
        """Path of the file `name` (relative, forward slashes); refuses one that leaves the folder."""
        parts = PurePosixPath(name)
        path = self.path.joinpath(*parts.parts)
        if parts.is_absolute() or ".." in parts.parts or not path.resolve().is_relative_to(self.path.resolve()):
            raise BadInputError(
                f"the bundle {self.path} names the file {name!r}",
                expected="a relative path inside the bundle",
                remedy="do not use this bundle; export the checkpoint again",
            )
        return path

    def altered_files(self) -> list[str]:
        """Names of the files whose sha256 differs from the manifest's."""
        return [
            record.path for record in self.manifest.files if sha256_of_file(self.file(record.path)) != record.sha256
        ]

    def _check_present(self, record: FileRecord) -> None:
        path = self.file(record.path)
        found = path.stat().st_size if path.is_file() else None
        if found != record.size:
            raise BadInputError(
                f"{path} " + ("is missing" if found is None else f"has {found} bytes"),
                expected=f"a file of {record.size} bytes, as the manifest says",
                remedy="copy the bundle again, or export the checkpoint again",
            )


def sha256_of_file(path: Path) -> str:
    """Hex sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
