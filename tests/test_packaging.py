"""The wheel contains every module and data file, and decodes when installed without extras."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from lopa.runtime.cpu_kernels.kernel_library import kernel_status
from lopa.tiny import CHECKPOINT

PROJECT = Path(__file__).resolve().parents[1]
LOPA = PROJECT / "src" / "lopa"
IMPORT_ALL = """
import importlib, pkgutil
import lopa.runtime
found = pkgutil.walk_packages(lopa.runtime.__path__, "lopa.runtime.")
libraries = ("._kernels", "._operators")  # without Python interface
modules = [each.name for each in found if not each.name.endswith(libraries)]
print(len([importlib.import_module(name) for name in modules]))
"""


def _copied_project(folder: Path) -> Path:
    """Return a copy of the project in `folder` without what was built or installed there."""
    unwanted = shutil.ignore_patterns(
        *(".venv*", ".git", ".*_cache", "__pycache__", "out", "build", "dist", "*.egg-info"),
        *("node_modules", ".chromium", ".bundlers", ".webgpu", ".onnxruntime-headers", ".prometheus"),
    )
    return Path(shutil.copytree(PROJECT, folder / "tree", symlinks=True, ignore=unwanted))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tree = _copied_project(folder)  # the build would reuse files of an earlier one, or of another test process
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(tree)], check=True
    )
    return next(folder.glob("*.whl"))


# Building and installing a wheel takes as long as 200 other tests.
built = pytest.mark.slow


@pytest.mark.parametrize("extra", ["serve", "ray"])
def test_server_extras_include_structured_output(extra: str) -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras["grammar"]
    assert set(extras["grammar"]) <= set(extras[extra])


@built
def test_the_wheel_is_complete(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in LOPA.rglob("*"):
        if path.is_file() and path.suffix not in (".pyc", ".cpp", ".h"):
            assert f"lopa/{path.relative_to(LOPA)}" in names
    assert not [name for name in names if name.endswith((".cpp", ".h"))]
    assert not any(name.startswith(("export/", "runtime/", "tests/")) for name in names)
    packages = [name for name in names if name.startswith("lopa/runtime/") and name.endswith("/__init__.py")]
    assert len(packages) > 12


@built
def test_the_source_archive_includes_tests_docs_and_tools(tmp_path: Path) -> None:
    tree = _copied_project(tmp_path)
    program = "import setuptools.build_meta as backend, sys; backend.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=tree, capture_output=True, check=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"constraints.txt", "Makefile", "README.md", "LICENSE", "pyproject.toml", ".ci/run"}
    wanted |= {
        str(path.relative_to(tree))
        for name in ("deploy", "docs", "tests", "tools")
        for path in (tree / name).rglob("*")
        if path.is_file()
    }
    assert wanted <= names, sorted(wanted - names)
    kernels = tree / "src" / "lopa" / "runtime" / "cpu_kernels"
    sources = {str(path.relative_to(tree)) for suffix in ("cpp", "h") for path in kernels.glob(f"*.{suffix}")}
    assert len(sources) > 5
    assert sources <= names
    packages = {path.name for path in LOPA.iterdir() if path.name != "__pycache__"}
    assert {name for name in packages if f"src/lopa/{name}" not in names} == set()
    assert not [name for name in names if "__pycache__" in name or name.endswith(".so")]
    assert not [name for name in names if name.startswith((".venv", "out/"))]


@built
def test_the_runtime_alone_decodes(wheel: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home)
    python = home / "bin" / "python"
    # This environment's pip installs there. Modules that are not imported need not be compiled.
    pip = [sys.executable, "-m", "pip", "--python", python]
    constraints = ["-c", PROJECT / "constraints.txt"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", *constraints, wheel], check=True)
    installed = subprocess.run([*pip, "list"], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0].lower() for line in installed.splitlines()[2:]}
    assert not names & {"torch", "transformers", "onnx", "onnxscript", "matplotlib"}

    modules = sum(1 for _ in (LOPA / "runtime").rglob("*.py")) - 1  # without the package itself
    imported = subprocess.run(
        [python, "-c", IMPORT_ALL], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert int(imported) == modules

    def lopa_export(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [home / "bin" / "lopa-export", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    generated = lopa_export("generate", str(tiny_bundle), "Question: 2 + 3?", "--max-new-tokens", "16")
    assert generated.returncode == 0, generated.stderr
    assert "16 tokens in" in generated.stderr or "stopped by eos" in generated.stderr
    assert lopa_export("inspect", str(tiny_bundle)).returncode == 0
    verified = lopa_export("verify", str(tiny_bundle))
    assert verified.returncode == 0, verified.stderr
    shown = lopa_export("doctor").stdout
    assert "installed   runtime, hub\n" in shown
    assert f"kernels     for quantized weights: {kernel_status()}\n" in shown  # as in this checkout
    doctor = lopa_export("doctor", "--all")
    assert "missing     export and verify" in doctor.stdout
    needed = "needs torch, transformers, peft, safetensors, onnx, onnx-ir, onnxscript"
    assert f'{needed}: {python} -m pip install "torch' in doctor.stdout
    refused = lopa_export("onnx", str(CHECKPOINT), "-o", "bundle")
    assert refused.returncode == 3
