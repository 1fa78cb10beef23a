"""setup.py compiles the kernels with GCC and clang, and says so where it cannot."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lopa.runtime.cpu_kernels import kernel_library as module
from lopa.runtime.cpu_kernels.kernel_library import kernel_library, kernel_status

PROJECT = Path(__file__).resolve().parents[3]
COMPILERS = ("g++", "clang++")
_OF_THE_COMPILER = re.compile(r"^\S*/lib/gcc\S*intrin\.h:\d+.*\[-W(?:maybe-)?uninitialized\]$")
"""Warnings about GCC's own definitions of intrinsics, which use undefined vectors on purpose."""


def _built(folder: Path, compiler: str) -> subprocess.CompletedProcess[str]:
    """Build into `folder` with `compiler`, and without Python's own flags."""
    command: list[str | Path] = [
        sys.executable,
        PROJECT / "setup.py",
        "--quiet",
        "build_ext",
        "--build-lib",
        folder / "lib",
    ]
    program = compiler if Path(compiler).is_absolute() else f"{compiler} -Wall -Wextra"
    return subprocess.run(
        [*command, "--build-temp", folder / "temp"],
        cwd=PROJECT,
        env={**os.environ, "CC": program, "CXX": program, "LDSHARED": f"{program} -shared", "LDFLAGS": "-Wl,-z,defs"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_kernels_compile_without_warnings(tmp_path: Path, compiler: str) -> None:
    library = kernel_library()
    if library is None or shutil.which(compiler) is None:
        pytest.skip(f"needs an x86-64 processor and {compiler}")
    done = _built(tmp_path, compiler)
    lines = [line for line in done.stderr.splitlines() if "warning: " in line]
    assert [line for line in lines if not _OF_THE_COMPILER.match(line)] == []
    (built,) = tmp_path.glob("lib/lopa/runtime/cpu_kernels/_kernels*")
    functions = ctypes.CDLL(str(built))
    functions.lopa_instruction_set.restype = ctypes.c_char_p
    assert functions.lopa_instruction_set().decode() == library.instruction_set
    # A function that is shared by sources with different flags would run on processors without its instructions.
    for source in tmp_path.rglob("avx*.o") if shutil.which("nm") else ():
        names = subprocess.run(
            ["nm", "-C", source], capture_output=True, text=True, check=True, timeout=300
        ).stdout.splitlines()
        assert [line for line in names if line[17] in "VWTu"] == []


def test_a_build_without_a_compiler_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = _built(tmp_path, "/bin/false")
    assert "warning: built without the kernels of the device cpu: " in done.stderr
    monkeypatch.setattr(module, "__file__", str(tmp_path / "lib/lopa/runtime/cpu_kernels/kernel_library.py"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    expected = r"not built: .*/bin/false.* 1; ONNX Runtime's kernels are used\. Install a C\+\+ compiler, .*"
    assert re.fullmatch(expected, kernel_status())
    assert not list(tmp_path.rglob("*.so"))
