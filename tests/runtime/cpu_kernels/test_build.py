"""The kernels compile from the tree without warnings in their own code, and the result runs."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import lopa.runtime.cpu_kernels as kernels
from lopa.runtime.cpu_kernels.kernel_library import kernel_library

FOLDER = Path(kernels.__file__).parent
_OF_THE_COMPILER = re.compile(r"^\S*/lib/gcc\S*intrin\.h:\d+.*\[-W(?:maybe-)?uninitialized\]$")
"""Warnings about GCC's own definitions of intrinsics, which use undefined vectors on purpose."""


def test_the_kernels_compile_without_warnings(tmp_path: Path) -> None:
    library = kernel_library()
    compiler = shutil.which("g++")
    if library is None or compiler is None:
        pytest.skip("needs an x86-64 processor and g++")
    built = tmp_path / "kernels.so"
    command = [compiler, "-std=c++17", "-O3", "-Wall", "-Wextra", "-fPIC", "-shared", "-Wl,-z,defs"]
    done = subprocess.run(
        [*command, *sorted(FOLDER.glob("*.cpp")), "-o", built], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if " warning: " in line]
    assert [line for line in lines if not _OF_THE_COMPILER.match(line)] == []
    functions = ctypes.CDLL(str(built))
    functions.lopa_instruction_set.restype = ctypes.c_char_p
    assert functions.lopa_instruction_set().decode() == library.instruction_set
