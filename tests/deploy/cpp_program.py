"""The program of deploy/cpp, built with ONNX Runtime's C++ headers and the library of its Python wheel."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import onnxruntime
import pytest

SOURCES = Path(__file__).resolve().parents[2] / "deploy" / "cpp"


def built_program(folder: Path, flags: str, kind: str = "Release") -> Path:
    """Build the program in `folder` as a `kind` of CMake, with the compiler's `flags`.

    Skip the test if something for it is missing.
    """
    for needed in ("cmake", "c++"):
        if shutil.which(needed) is None:
            pytest.skip(f"needs {needed}")
    headers = os.environ.get("ONNXRUNTIME_HEADERS")
    if headers is None:
        pytest.skip("needs headers in ONNXRUNTIME_HEADERS: make test-cpp unpacks them")
    libraries = list((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    if not libraries:
        pytest.skip("needs a wheel of ONNX Runtime for Linux")
    paths = [f"-DONNXRUNTIME_HEADERS={headers}", f"-DONNXRUNTIME_LIBRARY={libraries[0]}", f"-DCMAKE_CXX_FLAGS={flags}"]
    paths.append(f"-DCMAKE_BUILD_TYPE={kind}")
    for command in (["cmake", "-S", str(SOURCES), "-B", str(folder), *paths], ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "d2f"


def run(
    program: Path, *words: object, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program with these arguments. A program that hangs fails the test."""
    return subprocess.run(
        [program, *map(str, words)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def answer(done: subprocess.CompletedProcess[str]) -> tuple[list[int], int]:
    """Return the answer's ids and the number of forwards."""
    assert done.returncode == 0, done.stderr
    return [int(each) for each in done.stdout.split()], int(done.stderr.removesuffix(" forwards\n"))
