"""The library of the kernels: status for users, and an installation without it."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lopa.runtime.cpu_kernels import kernel_library as module
from lopa.runtime.cpu_kernels.kernel_library import KernelLibrary, kernel_library, kernel_status

LOPA = Path(__file__).resolve().parents[3] / "src" / "lopa"
FALLBACK = "ONNX Runtime's kernels are used"


@pytest.fixture(autouse=True)
def _fresh_cache() -> Iterator[None]:
    kernel_library.cache_clear()
    yield
    kernel_library.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folder in which the module looks for the library."""
    monkeypatch.setattr(module, "__file__", str(tmp_path / "kernel_library.py"))
    return tmp_path


def test_status_names_the_instruction_set() -> None:
    library = kernel_library()
    if library is None:
        pytest.skip("the kernels need an x86-64 processor and a C++ compiler")
    assert kernel_status() == library.instruction_set
    assert kernel_status() in ("avx512-vnni", "avx-vnni", "avx2")


def test_status_without_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert kernel_library() is None
    assert kernel_status() == f"not installed; {FALLBACK}. Install a C++ compiler, then reinstall lopa-export"
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert kernel_status() == f"not available for aarch64; {FALLBACK}"


def test_status_of_a_library_for_another_system(folder: Path) -> None:
    (folder / "_kernels.abi3.so").write_bytes(b"MZ")
    assert kernel_library() is None
    assert re.fullmatch(rf"cannot be loaded \(.+\); {FALLBACK}\. Reinstall lopa-export", kernel_status())


def test_status_on_a_processor_without_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    old = type("OldProcessor", (), {"lopa_instruction_set": staticmethod(lambda: None)})
    monkeypatch.setattr(module, "_loaded_library", lambda: KernelLibrary(Path("_kernels.abi3.so"), old))  # type: ignore[arg-type]
    assert kernel_library() is None
    assert kernel_status() == f"not used, because this processor has no AVX2; {FALLBACK}"


_PROGRAM = """
import sys
from pathlib import Path

import lopa
from lopa.cli.main import main

assert lopa.__file__.startswith(sys.argv[1])
main(sys.argv[2:])
"""


@pytest.mark.parametrize("tiny_quantized", ["int4"], indirect=True)
def test_an_installation_without_the_library_decodes(tiny_quantized: Path, tmp_path: Path) -> None:
    """A copy of the package in another process. Its result is that of ONNX Runtime's kernels in this checkout."""
    site = tmp_path / "site"
    shutil.copytree(LOPA, site / "lopa", ignore=shutil.ignore_patterns("*.so", "*.safetensors", "__pycache__"))

    def lopa_export(*arguments: object, package: Path = site, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _PROGRAM, package, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(package), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    generate = ("generate", tiny_quantized, "Question: 2 + 3?\nAnswer:", "--max-new-tokens", "16")
    without = lopa_export(*generate)
    assert without.returncode == 0, without.stderr
    with_onnxruntime = lopa_export(*generate, package=LOPA.parent, LOPA_WEIGHTS="packed")
    assert with_onnxruntime.returncode == 0, with_onnxruntime.stderr
    assert without.stdout == with_onnxruntime.stdout
    assert len(without.stdout) > 10
    refused = lopa_export(*generate, LOPA_WEIGHTS="mapped")
    assert refused.returncode == 2
    assert "LOPA_WEIGHTS=mapped, but the kernels of lopa.runtime.cpu_kernels are not available" in refused.stderr
    assert "install a C++ compiler" in refused.stderr
