"""Files that the sides need, in one folder: checkpoint, bundles, llama.cpp and its models.

Everything is built elsewhere and renamed, so incomplete results are never used.
"""

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.staging import Product, staged_folder
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.errors import BadInputError, MissingBackendError
from tools.checkpoint.likeness import Likeness
from tools.checkpoint.make import checkpoint_from_likeness
from tools.peers.gguf_file import write_gguf_of_checkpoint

_BUNDLES: dict[str, QuantizationChoice | None] = {
    "fp32": None,
    "int8": QuantizationChoice("int8"),
    "int4": QuantizationChoice("int4"),
}
_QUANTIZED = ("q8_0", "q4_0")
_GGUFS = Product("folder of GGUF files", "f32.gguf")
_PROGRAM = Product("build of llama.cpp", "llama_side")
_VERSION_NAME = "version"
_PACKAGE = "llama-cpp-python"
"""Package that contains llama.cpp as source."""
_TOOLS = ("cmake", "ninja", "c++")


@dataclass(frozen=True)
class Materials:
    """Paths of all files below `folder`."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        """Checkpoint with random weights."""
        return self.folder / "checkpoint"

    @property
    def llama_side(self) -> Path:
        """Executable of tools/peers/llama_side.cpp."""
        return self.folder / "llama.cpp" / _PROGRAM.marker

    @property
    def llama_version(self) -> Path:
        """File with the package version that llama_side was built from."""
        return self.llama_side.with_name(_VERSION_NAME)

    @property
    def ggufs(self) -> Path:
        """Folder of llama.cpp's models."""
        return self.folder / "gguf"

    def bundle(self, name: str) -> Path:
        """Return the path of our bundle fp32, int8 or int4."""
        return self.folder / "bundles" / name

    def gguf(self, kind: str) -> Path:
        """Return the path of llama.cpp's model f32, q8_0 or q4_0."""
        return self.ggufs / f"{kind}.gguf"


def prepare_materials(materials: Materials, likeness: Likeness, log: Callable[[str], None]) -> dict[str, str]:
    """Create missing files, and all bundles again, since the exporter may have changed.

    Return unavailable peers with the reason. Raises BadInputError if the folder is not writable.
    """
    if not materials.checkpoint.exists():
        log("making the checkpoint")
        checkpoint_from_likeness(likeness, materials.checkpoint)
    for name, quantization in _BUNDLES.items():
        log(f"exporting {name}")
        bundle_from_checkpoint(materials.checkpoint, materials.bundle(name), quantization=quantization, overwrite=True)
    log("preparing llama.cpp")
    try:
        _make_llama(materials)
    except MissingBackendError as error:
        return {"llama.cpp": error.received}
    return {}


def check_prepared(materials: Materials) -> None:
    """Raise BadInputError unless the checkpoint and our bundles exist. Peers may be missing."""
    absent = [path for path in (materials.checkpoint, *map(materials.bundle, _BUNDLES)) if not path.exists()]
    if absent:
        raise BadInputError(
            f"{absent[0]} does not exist",
            expected="a folder with a checkpoint and its bundles",
            remedy=f"run python -m tools.peers prepare --work {materials.folder}",
        )


def versions_of_peers(materials: Materials) -> dict[str, str]:
    """Return the versions of installed peers: OpenVINO, and the package that contains llama.cpp."""
    found = {each.name: each.version for each in importlib.metadata.distributions(name="openvino")}
    if materials.llama_version.exists():
        found["llama.cpp"] = materials.llama_version.read_text()
    return found


def _make_llama(materials: Materials) -> None:
    if not materials.llama_side.exists():
        _build_llama_side(materials.llama_side.parent)
    if materials.ggufs.exists():
        return
    with staged_folder(materials.ggufs, overwrite=False, product=_GGUFS) as place:
        write_gguf_of_checkpoint(materials.checkpoint, place / "f32.gguf")
        for kind in _QUANTIZED:
            words = ["quantize", place / "f32.gguf", place / f"{kind}.gguf", kind, 1]
            _run_or_missing([str(materials.llama_side), *map(str, words)], f"quantizing to {kind}")


def _build_llama_side(folder: Path) -> None:
    """Build llama_side into the new folder `folder` atomically. This takes minutes.

    Raises MissingBackendError without a compiler or the package's source, or if the build fails.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise MissingBackendError(
            f"no {', '.join(missing)} on this machine",
            expected=f"{', '.join(_TOOLS)}",
            remedy="install the missing tools",
        )
    with staged_folder(folder, overwrite=False, product=_PROGRAM) as place:
        source, build = place / "source", place / "build"
        source.mkdir()
        fetch = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", _PACKAGE, "--dest", str(source)]
        _run_or_missing([sys.executable, "-m", "pip", *fetch], f"downloading the source of {_PACKAGE}")
        with tarfile.open(next(source.glob("*.tar.gz"))) as packed:
            packed.extractall(source, filter="data")
        llama = next(source.glob("*/vendor/llama.cpp"))
        where = ["-G", "Ninja", "-S", str(Path(__file__).parent), "-B", str(build)]
        make = [*where, "-DCMAKE_BUILD_TYPE=Release", f"-DLLAMA_SOURCE={llama}"]
        _run_or_missing(["cmake", *make], "configuring the build of llama.cpp")
        _run_or_missing(["cmake", "--build", str(build), "--target", _PROGRAM.marker], "building llama.cpp")
        (place / _VERSION_NAME).write_text(llama.parents[1].name)
        shutil.copy2(build / _PROGRAM.marker, place / _PROGRAM.marker)
        shutil.rmtree(source)
        shutil.rmtree(build)


def _run_or_missing(command: Sequence[str], what: str) -> None:
    """Run `command`, which creates `what`. Raises MissingBackendError with the end of its output if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise MissingBackendError(
            f"{what} failed: {done.stdout.strip()[-600:]}",
            expected=" ".join(command[:4]) + " .. with exit code 0",
            remedy="run it manually, or continue without this peer",
        )
