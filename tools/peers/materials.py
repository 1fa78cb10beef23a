"""Files that the sides need, in one folder: checkpoint, bundles, and the peers' programs and models.

Everything is built elsewhere and renamed, so incomplete results are never used.
"""

import contextlib
import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.export.staging import Product, staged_folder
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.errors import BadInputError, MissingBackendError
from tools.checkpoint.likeness import Likeness
from tools.checkpoint.make import checkpoint_from_likeness
from tools.peers.genai_model import build_genai_model, install_genai_package
from tools.peers.gguf_file import architectures_of_network, write_gguf_of_checkpoint
from tools.peers.peer_command import run_or_missing

BUNDLES: dict[str, QuantizationChoice | None] = {
    "fp32": None,
    "int8": QuantizationChoice("int8"),
    "int4": QuantizationChoice("int4"),
}
"""Our bundles by name."""
_PROGRAM = Product("build of llama.cpp", "llama_side")
_VERSION_NAME, _DIGEST_NAME = "version", "source.sha256"
_PACKAGE = "llama-cpp-python"
"""Package that contains llama.cpp as source."""
_SOURCES = ("llama_side.cpp", "CMakeLists.txt")
_TOOLS = ("cmake", "ninja", "c++")


@dataclass(frozen=True)
class Needed:
    """Files that a choice of sides needs in addition to the checkpoint."""

    bundles: frozenset[str]
    """Our bundles, keys of BUNDLES."""
    ggufs: frozenset[str]
    """llama.cpp's models, keys of tools.peers.gguf_file.KINDS."""
    genai: bool
    """True for ONNX Runtime GenAI's own model."""


@dataclass(frozen=True)
class Materials:
    """Paths of all files: below `folder`, unless given."""

    folder: Path
    given_checkpoint: Path | None = None
    given_bundles: Mapping[str, Path] = field(default_factory=dict)
    """Bundles of the checkpoint that exist elsewhere, by their key in BUNDLES. They are only read."""

    @property
    def checkpoint(self) -> Path:
        """Checkpoint with random weights."""
        return self.given_checkpoint or self.folder / "checkpoint"

    @property
    def dimensions(self) -> ModelDimensions:
        """Sizes of the checkpoint. Raises BadInputError if it is unreadable."""
        return config_from_checkpoint(self.checkpoint).dimensions

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names of the checkpoint's architecture in llama.cpp. Raises BadInputError if it has none."""
        config = config_from_checkpoint(self.checkpoint)
        return architectures_of_network(config.architecture.name, config.dimensions)

    @property
    def answers(self) -> Path:
        """Folder of the reference's answers."""
        return self.folder / "answers"

    @property
    def llama_side(self) -> Path:
        """Executable of tools/peers/llama_side.cpp."""
        return self.folder / "llama.cpp" / _PROGRAM.marker

    @property
    def llama_version(self) -> Path:
        """File with the package version that llama_side was built from."""
        return self.llama_side.with_name(_VERSION_NAME)

    @property
    def genai_package(self) -> Path:
        """Installation of ONNX Runtime GenAI, for its model builder."""
        return self.folder / "genai" / "package"

    @property
    def genai_model(self) -> Path:
        """ONNX Runtime GenAI's own int4 model."""
        return self.folder / "genai" / "model"

    def bundle(self, name: str) -> Path:
        """Return the path of our bundle fp32, int8 or int4."""
        return self.given_bundles.get(name) or self.folder / "bundles" / name

    def gguf(self, kind: str) -> Path:
        """Return the path of llama.cpp's model f32, q8_0 or q4_0."""
        return self.folder / "gguf" / f"{kind}.gguf"


def prepare_materials(
    materials: Materials,
    likeness: Likeness,
    needed: Needed,
    log: Callable[[str], None],
    *,
    renew: bool = True,
    threads: int = 1,
) -> dict[str, str]:
    """Create missing files of `needed`. With `renew` export our bundles again, since the exporter may have changed.

    Return unavailable peers with the reason. Raises BadInputError if the folder is not writable or a given folder does
    not exist.
    """
    for given in (materials.given_checkpoint, *materials.given_bundles.values()):
        if given is not None and not given.is_dir():
            raise BadInputError(f"{given} is not a folder", expected="an existing folder", remedy="check the path")
    if not materials.checkpoint.exists():
        log("making the checkpoint")
        checkpoint_from_likeness(likeness, materials.checkpoint)
    for name in BUNDLES:
        if name in needed.bundles - materials.given_bundles.keys():
            _export_bundle(materials, name, log, renew=renew)
    missing: dict[str, str] = {}
    with _noted(missing, "llama.cpp"):
        if needed.ggufs:
            _make_llama(materials, needed.ggufs, log)
    with _noted(missing, "ONNX Runtime GenAI"):
        if needed.genai:
            _make_genai(materials, threads, log)
    return missing


def check_prepared(materials: Materials, needed: Needed) -> None:
    """Raise BadInputError unless the checkpoint and the needed bundles exist. Peers may be missing."""
    absent = [
        path for path in (materials.checkpoint, *map(materials.bundle, sorted(needed.bundles))) if not path.exists()
    ]
    if absent:
        raise BadInputError(
            f"{absent[0]} does not exist",
            expected="a folder with a checkpoint and its bundles",
            remedy=f"run python -m tools.peers prepare --work {materials.folder}",
        )


def remove_models(materials: Materials, needed: Needed) -> None:
    """Delete the bundles and the peers' models of `needed` in the work folder, but no given ones."""
    for name in needed.bundles - materials.given_bundles.keys():
        shutil.rmtree(materials.bundle(name), ignore_errors=True)
    for kind in needed.ggufs:
        materials.gguf(kind).unlink(missing_ok=True)
    if needed.genai:
        shutil.rmtree(materials.genai_model, ignore_errors=True)


def versions_of_peers(materials: Materials) -> dict[str, str]:
    """Return the versions of peers: OpenVINO, ONNX Runtime GenAI, and the package that contains llama.cpp."""
    found = {each.name: each.version for each in importlib.metadata.distributions(name="openvino")}
    installed = importlib.metadata.distributions(name="onnxruntime-genai", path=[str(materials.genai_package)])
    found |= {each.name: each.version for each in installed}
    if materials.llama_version.exists():
        found["llama.cpp"] = materials.llama_version.read_text()
    return found


@contextlib.contextmanager
def _noted(missing: dict[str, str], peer: str) -> Iterator[None]:
    """Add `peer` to `missing` if the block finds it unavailable."""
    try:
        yield
    except MissingBackendError as error:
        missing[peer] = error.received


def _export_bundle(materials: Materials, name: str, log: Callable[[str], None], *, renew: bool) -> None:
    path = materials.bundle(name)
    if renew or not path.exists():
        log(f"exporting {name}")
        bundle_from_checkpoint(materials.checkpoint, path, quantization=BUNDLES[name], overwrite=True)


def _make_llama(materials: Materials, kinds: frozenset[str], log: Callable[[str], None]) -> None:
    if not _is_current(materials.llama_side.parent):
        log("building llama.cpp")
        _build_llama_side(materials.llama_side.parent)
    for kind in sorted(kinds):
        path = materials.gguf(kind)
        if path.exists():
            continue
        log(f"writing {path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        try:
            write_gguf_of_checkpoint(materials.checkpoint, partial, kind, materials.llama_side)
            partial.replace(path)
        except subprocess.CalledProcessError as error:
            raise MissingBackendError(
                f"quantizing to {kind} failed: {error}",
                expected="exit code 0",
                remedy="run it manually, or continue without this peer",
            ) from error
        finally:
            partial.unlink(missing_ok=True)


def _make_genai(materials: Materials, threads: int, log: Callable[[str], None]) -> None:
    if not materials.genai_package.exists():
        log("installing ONNX Runtime GenAI's builder")
        install_genai_package(materials.genai_package)
    if not materials.genai_model.exists():
        log("building ONNX Runtime GenAI's model")
        build_genai_model(materials.checkpoint, materials.genai_package, materials.genai_model, threads)


def source_digest() -> str:
    """Return the digest of the source of llama_side, without llama.cpp's."""
    folder = Path(__file__).parent
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in _SOURCES)).hexdigest()


def _is_current(folder: Path) -> bool:
    """Return True if llama_side in `folder` was built from the present source."""
    digest = folder / _DIGEST_NAME
    return (folder / _PROGRAM.marker).exists() and digest.exists() and digest.read_text() == source_digest()


def _build_llama_side(folder: Path) -> None:
    """Build llama_side into `folder` atomically. This takes minutes.

    Raises MissingBackendError without a compiler or the package's source, or if the build fails.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise MissingBackendError(
            f"no {', '.join(missing)} on this machine",
            expected=f"{', '.join(_TOOLS)}",
            remedy="install the missing tools",
        )
    with staged_folder(folder, overwrite=True, product=_PROGRAM) as place:
        source, build = place / "source", place / "build"
        source.mkdir()
        fetch = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", _PACKAGE, "--dest", str(source)]
        run_or_missing([sys.executable, "-m", "pip", *fetch], f"downloading the source of {_PACKAGE}")
        with tarfile.open(next(source.glob("*.tar.gz"))) as packed:
            packed.extractall(source, filter="data")
        llama = next(source.glob("*/vendor/llama.cpp"))
        where = ["-G", "Ninja", "-S", str(Path(__file__).parent), "-B", str(build)]
        make = [*where, "-DCMAKE_BUILD_TYPE=Release", f"-DLLAMA_SOURCE={llama}"]
        run_or_missing(["cmake", *make], "configuring the build of llama.cpp")
        run_or_missing(["cmake", "--build", str(build), "--target", _PROGRAM.marker], "building llama.cpp")
        (place / _VERSION_NAME).write_text(llama.parents[1].name)
        (place / _DIGEST_NAME).write_text(source_digest())
        shutil.copy2(build / _PROGRAM.marker, place / _PROGRAM.marker)
        shutil.rmtree(source)
        shutil.rmtree(build)
