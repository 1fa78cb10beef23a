"""Archives of compiled kernels, one for each target: `python -m lopa.plugins.kernels.archive OUT [--target sm_90]`.

An archive is a zip file with one image for each variant and index.json, which has what a launcher needs.
"""

import argparse
import json
import multiprocessing
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import triton

from lopa.plugins.kernels.ahead_of_time import compiled_variant
from lopa.plugins.kernels.variants import variants

FORMAT = 1
"""Version of the index."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Target:
    """GPUs that run the same images."""

    number: int
    """Compute capability, e.g. 90."""
    cuda: int
    """Lowest version of CUDA that the driver must support, as cuDriverGetVersion reports it."""
    driver: str
    """First driver for Linux with that version."""
    ptx_version: int | None = None
    """Version of PTX, e.g. 80 for 8.0, if the images are PTX. They also run on GPUs that are newer than the target."""


# ptxas 12.8 assembles for targets below 100, and 13.1 for others. A cubin runs on any driver of the same major version
# of CUDA that knows the GPU. Drivers before 12.0 have no cuLibraryLoadData.
TARGETS = {f"sm_{number}": Target(number, 12000, "525.60.13") for number in (80, 86, 89, 90)}
TARGETS |= {f"sm_{number}": Target(number, 13000, "580.65.06") for number in (100, 103, 120, 121)}
TARGETS["compute_80"] = Target(80, 12000, "525.60.13", ptx_version=80)


def compiled_entry(target: Target, name: str, cache: str | None = None) -> tuple[dict[str, Any], bytes]:
    """Compile a variant. Return its entry of the index, and its image. `cache` is the folder of Triton's cache."""
    if cache is not None:
        triton.knobs.cache.dir = cache
    variant = variants(target.number)[name]
    compiled = compiled_variant(variant, target.number, target.ptx_version)
    registers, spills = compiled.registers_and_spills()
    entry = {
        "file": f"{name}.{'ptx' if target.ptx_version else 'cubin'}",
        "entry": compiled.entry,
        "threads": compiled.threads,
        "shared": compiled.shared,
        "registers": registers,
        "spills": spills,
        "parameters": compiled.parameters,
        "constants": {name: value for name, value in variant.constants.items() if isinstance(value, int)},
    }
    return entry, compiled.ptx.encode() if target.ptx_version else compiled.cubin


def write_archive(path: Path, name: str, processes: int, only: Sequence[str] | None = None) -> None:
    """Write the archive of a target, a key of TARGETS. Its bytes depend on nothing but the kernels and Triton.

    `only` names the variants. The default is all.
    """
    target = TARGETS[name]
    wanted = sorted(only or variants(target.number))
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as cache, ProcessPoolExecutor(processes, context) as pool:
        compiled = dict(zip(wanted, pool.map(partial(compiled_entry, target, cache=cache), wanted), strict=True))
    index = {
        "format": FORMAT,
        "target": name,
        "cuda": target.cuda,
        "driver": target.driver,
        "triton": triton.__version__,
        "kernels": {variant: entry for variant, (entry, _) in compiled.items()},
    }
    files = {"index.json": json.dumps(index, indent=1).encode()}
    files |= {entry["file"]: image for entry, image in compiled.values()}
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(zipfile.ZipInfo(file, _EPOCH), content, zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    """Write archives to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the archives, TARGET.zip")
    parser.add_argument(
        "--target", action="append", choices=TARGETS, help="target, several times for several; default: all"
    )
    parser.add_argument("--processes", type=int, default=2, help="compilers that run at once; default: 2")
    choices = parser.parse_args()
    choices.folder.mkdir(parents=True, exist_ok=True)
    for name in choices.target or TARGETS:
        write_archive(choices.folder / f"{name}.zip", name, choices.processes)


if __name__ == "__main__":
    main()
