"""A bundle on disk: its manifest and the way to its files. Does not know how one is made or run."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lopa.runtime.bundle.listed_file import check_listed_file, path_of_listed_file
from lopa.runtime.bundle.manifest import MANIFEST_NAME, Dialect, Manifest, manifest_from_json
from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, refused_as_bad_input

_REMEDY = "copy the bundle again, or export the checkpoint again"


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
        expected = "a bundle folder made by lopa-export onnx"
        with refused_as_bad_input(f"the path {shown(path)}", expected=expected, remedy="check the path"):
            folder = Path(path)
        path = folder / MANIFEST_NAME
        with refused_as_bad_input(f"{path!s:.300}", expected=expected, remedy="check the path"):
            there = path.is_file()
        if not there:
            raise BadInputError(
                f"{folder} has no {MANIFEST_NAME}",
                expected=expected,
                remedy="check the path, or make one: lopa-export onnx CHECKPOINT -o BUNDLE",
            )
        text = bytes_from_file(path, expected=expected, remedy=_REMEDY)
        bundle = cls(folder, manifest_from_json(text, source=str(path)))
        for record in bundle.manifest.files:
            check_listed_file(folder, record.path, record.size, whole="bundle", remedy=_REMEDY)
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
            alone = msgspec.structs.replace(alone, stages=[], cpu_graphs=[], plugins=[])  # which are of standard graphs
        return replace(self, manifest=alone)

    def graph_for_cpu(self) -> Path:
        """The twin of `graph` for ONNX Runtime on a CPU; `graph` itself if it has none, or is not what its twin is of.

        Raises BadInputError when `graph` cannot be read.
        """
        return self._twin(unpacked=False) or self.graph

    def unpacked_graph(self) -> Path | None:
        """The twin of `graph` with int4 matrices unpacked; None as above."""
        return self._twin(unpacked=True)

    def _twin(self, *, unpacked: bool) -> Path | None:
        twins = [each for each in self.manifest.cpu_graphs if each.source == self.manifest.graph]
        twin = next((each for each in twins if each.unpacked == unpacked), None)
        if twin is None or sha256_of_file(self.graph) != twin.source_sha256:  # under a megabyte: weights lie elsewhere
            return None
        return self.file(twin.graph)

    def with_cpu_graphs(self, *, unpacked: bool) -> "Bundle":
        """The same bundle with the twins of one kind alone."""
        twins = [each for each in self.manifest.cpu_graphs if each.unpacked == unpacked]
        return replace(self, manifest=msgspec.structs.replace(self.manifest, cpu_graphs=twins))

    def without_cpu_graphs(self) -> "Bundle":
        """The same bundle, whose standard graphs run on a CPU as they are."""
        return replace(self, manifest=msgspec.structs.replace(self.manifest, cpu_graphs=[]))

    @property
    def weights(self) -> Path:
        """The file of external data, laid out by manifest.tensors."""
        return self.file(self.manifest.weights)

    def file(self, name: str) -> Path:
        """Path of the file `name` (relative, forward slashes); refuses one that leaves the folder."""
        return path_of_listed_file(self.path, name, whole="bundle", remedy=_REMEDY)

    def altered_files(self) -> list[str]:
        """Names of the files whose sha256 differs from the manifest's. Raises BadInputError where one is not read."""
        return [
            record.path for record in self.manifest.files if sha256_of_file(self.file(record.path)) != record.sha256
        ]


def sha256_of_file(path: Path) -> str:
    """Hex sha256 of a file, read in pieces. Raises BadInputError when it cannot be read."""
    with (
        refused_as_bad_input(str(path), expected="a file that can be read", remedy="copy it again"),
        path.open("rb") as file,
    ):
        return hashlib.file_digest(file, "sha256").hexdigest()
