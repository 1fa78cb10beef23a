"""The kernels compile from the tree without warnings in their own code, and the result runs."""

import ctypes
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime.cpu_kernels.kernel_library import kernel_library

PROJECT = Path(__file__).resolve().parents[3]
_OF_THE_COMPILER = re.compile(r"^\S*/lib/gcc\S*intrin\.h:\d+.*\[-W(?:maybe-)?uninitialized\]$")
"""Warnings about GCC's own definitions of intrinsics, which use undefined vectors on purpose."""


def extension() -> dict[str, Any]:
    """Return the only extension module of pyproject.toml."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    (found,) = settings["ext-modules"]
    return dict(found)


def test_setuptools_knows_every_source() -> None:
    folder = PROJECT / "src" / "lopa" / "runtime" / "cpu_kernels"
    listed = {kind: sorted(PROJECT / path for path in extension()[kind]) for kind in ("sources", "depends")}
    assert listed == {"sources": sorted(folder.glob("*.cpp")), "depends": sorted(folder.glob("*.h"))}


def test_the_kernels_compile_without_warnings(tmp_path: Path) -> None:
    library = kernel_library()
    compiler = shutil.which("g++")
    if library is None or compiler is None:
        pytest.skip("needs an x86-64 processor and g++")
    built = tmp_path / "kernels.so"
    command = [compiler, *extension()["extra-compile-args"], "-Wall", "-Wextra", "-fPIC", "-shared", "-Wl,-z,defs"]
    done = subprocess.run(
        [*command, *extension()["sources"], "-o", str(built)], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if " warning: " in line]
    assert [line for line in lines if not _OF_THE_COMPILER.match(line)] == []
    functions = ctypes.CDLL(str(built))
    functions.lopa_instruction_set.restype = ctypes.c_char_p
    assert functions.lopa_instruction_set().decode() == library.instruction_set
