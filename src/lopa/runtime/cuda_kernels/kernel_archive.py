"""Archives of compiled kernels: those of the package, or one that Triton compiles on this machine and that is kept.

An archive is a zip file with an image of each kernel and index.json (lopa.plugins.kernels.archive writes it). Archives
are a part of the package or of this user's cache, never of a bundle: a bundle cannot run code on a GPU.
"""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from lopa.runtime.cuda_kernels.attention_tasks import CHUNK_ROWS
from lopa.runtime.cuda_kernels.cuda_library import LaunchableKernel
from lopa.runtime.errors import raise_if_from_handler

_log = logging.getLogger(__name__)
FORMAT = 1
TARGETS = (80, 86, 89, 90, 100, 103, 120, 121)
"""Compute capabilities with images of their own. Others above the first use PTX, which their driver compiles."""
COMMIT_ROWS = 8
"""Rows per program of the commit kernel."""
_HOST_CONSTANTS = {
    "branch_attention": ("CHUNK_ROWS", CHUNK_ROWS),
    "commit": ("ROWS", COMMIT_ROWS),
    **dict.fromkeys(("swiglu", "scale_rows", "product_merge"), ("BLOCK", 1024)),
    **dict.fromkeys(("int4_product", "rounded_product"), ("COLUMNS", 128)),
    "statistics_merge": ("PLACES", 32),
    "expert_tasks": ("TILE", 32),
    "expert_sum": ("BLOCK", 1024),
}
"""Constants on which the host depends (attention_tasks.py, row_kernel.py, operators.cpp). With others, rows would be
left out.
"""
_FOLDER = Path(__file__).with_name("archives")
_COMPILER = "lopa.plugins.kernels.archive"
"""Program that compiles archives with Triton."""
_SCRATCH_POINTERS = 2
"""Pointers that Triton adds behind the arguments of every kernel."""
_MAX_KEPT = 4
"""Archives that are kept in the user's cache. Each has about 2 MB."""
_MAX_SECONDS = 3600
_REMEDY = 'install Triton ("triton>=3.7"), which compiles them, or a wheel of `make release`, which contains them'


@dataclass(frozen=True)
class KernelArchive:
    """Kernels for one architecture."""

    name: str
    kernels: Mapping[str, LaunchableKernel]
    """Kernels by variant."""
    cuda: int
    """Lowest version of CUDA that the driver must support, e.g. 12000 for 12.0."""
    driver: str
    """First driver for Linux with this version."""


@cache
def kernels_for_target(architecture: str) -> KernelArchive | str:
    """Return the kernels for an architecture, e.g. "sm90", or the reason why there are none."""
    number = int(architecture.removeprefix("sm"))
    if number < min(TARGETS):
        return f"this GPU has compute capability {number / 10:g}, and they need {min(TARGETS) / 10:g} or newer"
    path = _path_of_target(number)
    if path.exists():
        return _kernels_of_file(path)
    if find_spec("triton") is None:
        return f"this installation has no kernels for compute capability {number / 10:g}: {_REMEDY}"
    found = _compiled_archive(path)
    if isinstance(found, str):
        _log.warning("%s. The plain graph runs instead; LOPA_CUDA_KERNELS=off skips this", found)
    return found


def needs_compilation(architecture: str) -> bool:
    """Return True if Triton has to compile the kernels for an architecture first, which takes minutes."""
    number = int(architecture.removeprefix("sm"))
    return number >= min(TARGETS) and find_spec("triton") is not None and not _path_of_target(number).exists()


def kernels_status() -> str:
    """Return which GPUs this installation has kernels for, for users."""
    targets = sorted(path.stem for path in _FOLDER.glob("*.zip"))
    if targets:
        return f"compiled for {', '.join(targets)}"
    if find_spec("triton") is not None:
        return "compiled by Triton when a GPU is first used"
    return f"none, so ONNX Runtime's kernels are used. To change that, {_REMEDY}"


def archive_of_file(path: Path) -> KernelArchive:
    """Return the kernels of an archive. Raises ValueError for another format, or kernels of another version."""
    with zipfile.ZipFile(path) as archive:
        index = json.loads(archive.read("index.json"))
        if index["format"] != FORMAT:
            raise ValueError(f"{path} has format {index['format']}, expected {FORMAT}")
        for variant, found in index["kernels"].items():
            name, number = _HOST_CONSTANTS.get(variant.partition(".")[0], ("", None))
            if found["constants"].get(name) != number:
                raise ValueError(
                    f"{variant} of {path} has the constants {found['constants']}, expected {name} {number}"
                )
        kernels = {
            variant: LaunchableKernel(
                entry=found["entry"],
                image=archive.read(found["file"]) + b"\0",
                arguments=len(found["parameters"]) - _SCRATCH_POINTERS,
                scratch=_SCRATCH_POINTERS,
                threads=found["threads"],
                shared_bytes=found["shared"],
            )
            for variant, found in index["kernels"].items()
        }
    return KernelArchive(index["target"], kernels, index["cuda"], index["driver"])


def _kernels_of_file(path: Path) -> KernelArchive | str:
    """Return the kernels of an archive, or why it cannot be used."""
    try:
        return archive_of_file(path)
    except Exception as error:  # zipfile, zlib, json and missing names
        raise_if_from_handler(error)
        return f"{path} cannot be read ({error!r}); remove it, or install lopa-export again"


def _path_of_target(number: int) -> Path:
    """Return the archive for a compute capability: of the package, or, with Triton, the one that the user's cache keeps
    or will keep."""
    name = f"sm_{number}" if number in TARGETS else "compute_80"
    path = _FOLDER / f"{name}.zip"
    if path.exists() or find_spec("triton") is None:
        return path
    sources = Path(__file__).parents[2] / "plugins" / "kernels"
    content = b"".join(path.read_bytes() for path in sorted(sources.glob("*.py")))
    digest = hashlib.sha256(content + version("triton").encode()).hexdigest()[:16]
    # Without a home, "~" stays, and "/~" is a folder that cannot be made.
    cache = Path("/", os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
    return cache / "lopa-export" / "cuda_kernels" / f"{digest}-{name}.zip"


def _compiled_archive(path: Path) -> KernelArchive | str:
    """Return the archive that Triton compiles from this installation's kernels and that is kept at `path`, or why it
    cannot."""
    kept, name = path.parent, path.stem.partition("-")[2]
    _log.warning("Triton compiles the kernels for %s once, into %s. This takes minutes", name, kept)
    try:
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as folder:
            processes = str(os.cpu_count() or 1)
            command = [sys.executable, "-m", _COMPILER, folder, "--target", name, "--processes", processes]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_MAX_SECONDS, check=False)
            if done.returncode != 0:
                last = "".join(done.stderr.splitlines()[-1:])
                return f"Triton cannot compile the kernels for {name} (exit code {done.returncode}): {last}"
            shutil.move(Path(folder) / f"{name}.zip", path)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Triton's kernels cannot be made in the folder that XDG_CACHE_HOME chooses: {error}"
    archives = sorted(kept.glob("*.zip"), key=lambda each: each.stat().st_mtime)
    for old in archives[:-_MAX_KEPT]:
        old.unlink(missing_ok=True)
    return _kernels_of_file(path)
