"""Both TensorRT libraries are imported on demand, in supported versions with matching distributions."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.install_hint import pip_install
from lopa.runtime.tensorrt.tensorrt_library import RTX, TENSORRT, TensorRTLibrary, library_of_device


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
