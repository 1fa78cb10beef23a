"""llama_side, built with the llama.cpp that the package llama-cpp-python carries as source. Knows no model."""

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from lopa.export.staging import Product, staged_folder
from lopa.runtime.errors import MissingBackendError

PACKAGE = "llama-cpp-python"
PROGRAM = Product("build of llama.cpp", "llama_side")
VERSION_NAME = "version"
_OURS = Path(__file__).parent
_TOOLS = ("cmake", "ninja", "c++")


def build_llama_side(folder: Path) -> None:
    """Make the new folder `folder`, with llama_side in it, whole or not at all: minutes.

    Raises MissingBackendError without a compiler, without the package's source, or when it does not build.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise MissingBackendError(
            f"no {', '.join(missing)} on this machine", expected=f"{', '.join(_TOOLS)}", remedy="install them"
        )
    with staged_folder(folder, overwrite=False, product=PROGRAM) as place:
        source, build = place / "source", place / "build"
        source.mkdir()
        fetch = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", PACKAGE, "--dest", str(source)]
        run_or_missing([sys.executable, "-m", "pip", *fetch], f"the source of {PACKAGE}")
        with tarfile.open(next(source.glob("*.tar.gz"))) as packed:
            packed.extractall(source, filter="data")
        llama = next(source.glob("*/vendor/llama.cpp"))
        where = ["-G", "Ninja", "-S", str(_OURS), "-B", str(build)]
        make = [*where, "-DCMAKE_BUILD_TYPE=Release", f"-DLLAMA_SOURCE={llama}"]
        run_or_missing(["cmake", *make], "setting up the build of llama.cpp")
        run_or_missing(["cmake", "--build", str(build), "--target", PROGRAM.marker], "the build of llama.cpp")
        (place / VERSION_NAME).write_text(llama.parents[1].name)
        shutil.copy2(build / PROGRAM.marker, place / PROGRAM.marker)
        shutil.rmtree(source)
        shutil.rmtree(build)


def run_or_missing(command: Sequence[str], what: str) -> None:
    """Run `command`, which makes `what`. Raises MissingBackendError with the end of what it says when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise MissingBackendError(
            f"{what} failed: {done.stdout.strip()[-600:]}",
            expected=" ".join(command[:4]) + " .. ends well",
            remedy="run it by hand, or go on without this peer",
        )
