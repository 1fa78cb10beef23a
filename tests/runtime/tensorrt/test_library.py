"""Both TensorRT libraries: import, versions and recorded APIs, and garbage collection, which is off inside them."""

import gc
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.runtime.tensorrt.bindings import PINS, installed_bindings, installed_rtx

from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.install_hint import pip_install
from lopa.runtime.tensorrt.tensorrt_library import (
    RTX,
    TENSORRT,
    TensorRTLibrary,
    garbage_collection_disabled,
    library_of_device,
)


def _module(version: str) -> ModuleType:
    module = ModuleType("any")
    module.__dict__["__version__"] = version
    return module


@pytest.fixture
def neither_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine with neither library."""
    for library in (TENSORRT, RTX):
        for name in library.modules:
            monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("neither_installed")
@pytest.mark.parametrize(
    ("library", "name", "known", "unknown"),
    [
        (TENSORRT, "tensorrt", ("10.15.0.1", "11.4.0.106"), ("8.6.1", "10.14.1.48.post1", "12.0.0", "1.7.1.116")),
        (RTX, "tensorrt_rtx_bindings", ("1.7.1.116",), ("1.4.0.76", "2.0.0.1", "11.4.0.106")),
        (RTX, "tensorrt_rtx", ("1.9.0.1",), ()),
    ],
)
def test_supported_versions(
    library: TensorRTLibrary,
    name: str,
    known: tuple[str, ...],
    unknown: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for version in (*known, *unknown):
        module = _module(version)
        monkeypatch.setitem(sys.modules, name, module)
        if version in known:
            assert library.module() is module
            continue
        with pytest.raises(MissingBackendError, match=f"{library.title} {version}") as caught:
            library.module()
        assert caught.value.expected == f"{library.title} {library.versions}"


@pytest.mark.usefixtures("neither_installed")
@pytest.mark.parametrize("library", [TENSORRT, RTX], ids=lambda each: each.name)
def test_missing_library_raises(library: TensorRTLibrary) -> None:
    with pytest.raises(MissingBackendError, match=rf"{library.title} cannot be imported") as caught:
        library.module()
    assert pip_install(library.name) in caught.value.remedy


@pytest.mark.parametrize(("bindings", "same"), [("1.7.1.116", True), ("1.7.2.1", False)])
def test_bindings_and_libraries_must_match(
    bindings: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate pip upgrading only one of the two distributions."""
    for name, version in (("tensorrt_rtx_cu13_bindings", bindings), ("tensorrt_rtx_cu13_libs", "1.7.1.116")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", _module(bindings))
    if same:
        assert RTX.module().__version__ == bindings
        return
    with pytest.raises(MissingBackendError, match=r"cu13-libs 1\.7\.1\.116, .*cu13-bindings 1\.7\.2\.1") as caught:
        RTX.module()
    assert "of one version" in caught.value.expected


def test_library_of_device() -> None:
    assert [library_of_device(each) for each in ("tensorrt:0", "tensorrt-rtx:1")] == [TENSORRT, RTX]
    with pytest.raises(BadInputError, match="device 'cuda:0'"):
        library_of_device("cuda:0")


ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("pin", PINS)
def test_record_matches_the_real_bindings(pin: str, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler to build stand-ins for the libraries")
    major = pin.split("==")[1].split(".")[0]
    assert _record_again(installed_bindings(pin, pytestconfig), tmp_path) == _record(major)


def test_record_matches_the_real_rtx_bindings(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    assert _record_again(installed_rtx(pytestconfig), tmp_path) == _record("rtx-1")


def _record_again(bindings: Path, folder: Path) -> str:
    recorder = ROOT / "tools" / "vendors" / "record_tensorrt_api.py"
    command = [sys.executable, recorder, bindings, "-o", folder / "api.json"]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert made.returncode == 0, made.stderr
    return (folder / "api.json").read_text()


def _record(major: str) -> str:
    return (Path(__file__).parent / f"api-{major}.json").read_text()


@pytest.fixture
def collecting() -> bool:
    assert gc.isenabled()
    return True


def test_collection_is_off_inside_the_block(collecting: bool) -> None:
    with garbage_collection_disabled():
        assert not gc.isenabled()
        with garbage_collection_disabled():  # as in another thread
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_disabled_collection_stays_disabled(collecting: bool) -> None:
    gc.disable()
    try:
        with garbage_collection_disabled(), pytest.raises(ValueError, match="x"), garbage_collection_disabled():
            raise ValueError("x")
        assert not gc.isenabled()
    finally:
        gc.enable()
