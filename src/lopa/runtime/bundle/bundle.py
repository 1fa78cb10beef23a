"""A bundle on disk: its manifest and the paths of its files. This module neither builds nor runs a bundle."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from lopa.runtime.bundle.manifest import MANIFEST_NAME, Dialect, Manifest, TwinForm
from lopa.runtime.bundle.manifest_checks import manifest_from_json
from lopa.runtime.bundle.record import check_listed_file, listed_file_path
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.files.stamp import Stamp, changed_file, check_stamps, stamp_from_status
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.hub.hub_bundle import folder_of_bundle

_REMEDY = "copy the bundle again, or export the checkpoint again"


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: folder and checked manifest."""

    path: Path
    """The folder, absolute and without links, so that it stays the same when a link is changed."""
    manifest: Manifest
    stamps: Mapping[str, Stamp] = field(default_factory=dict, compare=False, repr=False)
    """Stamps of the manifest and of the files that it lists, from the moment they were checked."""
    manifest_sha256: str = field(default="", compare=False, repr=False)
    """Digest of the manifest's file as it was read."""
    signed: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The hex sha256 of the files that a trusted signature covers, by name; empty without one."""

    @classmethod
    def open(cls, path: Path | str) -> "Bundle":
        """Open the bundle at `path`: read the manifest and check that every file exists with its size.

        `path` is a folder, or hf://ORG/NAME@REVISION for a bundle of the Hugging Face Hub, which is downloaded into the
        Hub's cache. Raises BadInputError if a file is missing or outside the folder, or if the schema differs. Raises
        it also as lopa.runtime.hub does. Only `altered_files` checks digests, because that reads gigabytes.
        """
        return cls.from_folder(folder_of_bundle(path))

    @classmethod
    def from_folder(cls, folder: Path) -> "Bundle":
        """Open the bundle in `folder` like `open`, by this very path."""
        expected = "a bundle folder made by lopa-export onnx"
        path = folder / MANIFEST_NAME
        with errors_as_bad_input(f"{path!s:.300}", expected=expected, remedy="check the path"):
            stamp = stamp_from_status(path.stat()) if path.is_file() else None
            lacks = (
                f"has no {MANIFEST_NAME}" if folder.is_dir() else "is a file" if folder.exists() else "does not exist"
            )
        if stamp is None:
            raise BadInputError(
                f"{folder} {lacks}",
                expected=expected,
                remedy="check the path, or make one: lopa-export onnx CHECKPOINT -o BUNDLE",
            )
        text = bytes_from_file(path, expected=expected, remedy=_REMEDY)
        manifest = manifest_from_json(text, source=str(path))
        stamps = {
            each.path: check_listed_file(folder, each.path, each.size, whole="bundle", remedy=_REMEDY)
            for each in manifest.files
        }
        return cls(folder, manifest, {MANIFEST_NAME: stamp, **stamps}, hashlib.sha256(text).hexdigest())

    def check_unchanged(self) -> None:
        """Raise BadInputError if a file of the bundle is no longer the one that was checked.

        A caller that opens further files of the bundle calls this afterwards: the folder may be replaced meanwhile.
        """
        check_stamps(self.path, self.stamps)
        # Another bundle with files of equal sizes and times has other digests in its manifest.
        if self.manifest_sha256 and sha256_of_file(self.path / MANIFEST_NAME) != self.manifest_sha256:
            raise changed_file(self.path / MANIFEST_NAME)

    @property
    def graph(self) -> Path:
        """Path of the ONNX file, in the manifest's dialect."""
        return self.file(self.manifest.graph)

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """Dialects with a graph; the dialect of `graph` comes first."""
        second: tuple[Dialect, ...] = () if self.manifest.portable_graph is None else ("portable",)
        return (self.manifest.dialect, *second)

    def with_dialect(self, dialect: Dialect) -> "Bundle":
        """Return the bundle with the graph of one dialect only. Raises BadInputError if it has none."""
        if dialect not in self.dialects:
            raise BadInputError(
                f"{self.path} has only a graph in the {self.manifest.dialect} dialect",
                expected=f"a graph in the {dialect} dialect",
                remedy=f"export the checkpoint again with --dialect {dialect} or --dialect both",
            )
        graph = self.manifest.graph if dialect == self.manifest.dialect else self.manifest.portable_graph
        is_standard = dialect == "standard"  # stages and functions exist only for standard graphs
        stages = self.manifest.stages if is_standard else []
        sources = {graph, *(stage.graph for stage in stages)}
        alone = msgspec.structs.replace(
            self.manifest,
            dialect=dialect,
            graph=graph,
            portable_graph=None,
            rotary_inputs=[each for each in self.manifest.rotary_inputs if each == dialect],
            stages=stages,
            plugins=self.manifest.plugins if is_standard else [],
            twins=[twin for twin in self.manifest.twins if twin.source in sources],
        )
        return replace(self, manifest=alone)

    def twin(self, provider: str, form: TwinForm = "packed") -> Path | None:
        """Return the path of the twin of `graph` for a provider, with quantized matrices in `form`.

        The result is None if there is no such twin, or if it was made from another graph. Raises BadInputError if
        `graph` cannot be read.
        """
        key = (provider, form, self.manifest.graph)
        twin = next((each for each in self.manifest.twins if (each.provider, each.form, each.source) == key), None)
        # The digest reads less than a megabyte; weights are in another file.
        return None if twin is None or sha256_of_file(self.graph) != twin.source_sha256 else self.file(twin.graph)

    def with_twins(self, *forms: TwinForm) -> "Bundle":
        """Return the bundle with only those twins whose matrices are in `forms`. Without any, graphs run unchanged."""
        twins = [each for each in self.manifest.twins if each.form in forms]
        return replace(self, manifest=msgspec.structs.replace(self.manifest, twins=twins))

    @property
    def weights(self) -> Path:
        """Path of the external weights, laid out as in manifest.tensors."""
        return self.file(self.manifest.weights)

    def file(self, name: str) -> Path:
        """Return the path of file `name` (relative, forward slashes). Raises BadInputError if it leaves the folder."""
        return listed_file_path(self.path, name, whole="bundle", remedy=_REMEDY)

    def content(self, name: str, *, expected: str, remedy: str) -> bytes:
        """Return the content of the file `name`.

        Raises BadInputError for a file that cannot be read, and for one that the trusted signature does not cover.
        """
        text = bytes_from_file(self.path / name, expected=expected, remedy=remedy)
        if self.signed and self.signed.get(name) != hashlib.sha256(text).hexdigest():
            raise BadInputError(
                f"{self.path / name} is not the file that was signed when the bundle was opened",
                expected="the folder as it was signed",
                remedy="remove it, or sign the bundle again and open it again",
            )
        return text

    @property
    def digests(self) -> dict[str, str]:
        """The hex sha256 of the listed files by their names, by the manifest."""
        return {record.path: record.sha256 for record in self.manifest.files}

    def altered_files(self) -> list[str]:
        """Return the names of files whose sha256 differs from the manifest. Raises BadInputError if one cannot be
        read.
        """
        return [name for name, digest in self.digests.items() if sha256_of_file(self.file(name)) != digest]


def sha256_of_file(path: Path) -> str:
    """Return the hex sha256 of a file, read in chunks. Raises BadInputError if it cannot be read."""
    with (
        errors_as_bad_input(str(path), expected="a readable file", remedy="copy it again"),
        path.open("rb") as file,
    ):
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_no_canvases(bundle: Bundle, use: str, remedy: str = "open it with --device cpu, without an engine") -> None:
    """Raise BadInputError for a bundle with canvases, of which `use` has no form."""
    if bundle.manifest.dimensions.canvas is not None:
        raise BadInputError(
            f"{use} of {bundle.path}, a bundle with canvases (contract version 2)",
            expected="a bundle of contract version 1, of a model with a mask token",
            remedy=remedy,
        )
