"""TensorRT is imported only when it is asked for, and only in versions that are known."""

import sys
from types import ModuleType

import pytest

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install
from lopa.runtime.tensorrt.library import TENSORRT


def _module(version: str) -> ModuleType:
    module = ModuleType("tensorrt")
    module.__dict__["__version__"] = version
    return module


@pytest.mark.parametrize("version", ["10.15.0.1", "10.16.1.11", "11.0.0.114", "11.4.0.106"])
def test_known_versions(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    module = _module(version)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    assert TENSORRT.module() is module


@pytest.mark.parametrize("version", ["8.6.1", "10.14.1.48.post1", "12.0.0"])
def test_unknown_versions(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", _module(version))
    with pytest.raises(MissingBackendError, match=f"TensorRT {version}") as caught:
        TENSORRT.module()
    assert caught.value.expected == "TensorRT 10.15 to 11.x"


def test_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingBackendError, match="cannot be imported") as caught:
        TENSORRT.module()
    assert pip_install("tensorrt") in caught.value.remedy
