"""CUDA libraries from NVIDIA's pip packages are loaded before a CUDA session opens, and only then."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.cuda.stand_in_ort import StandInOrt

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.sessions import cuda_libraries
from lopa.runtime.sessions.cuda_libraries import load_cuda_libraries
from lopa.runtime.sessions.session import open_session

MISSING = "Failed to load libcublas.so.13: libcublas.so.13: cannot open shared object file: No such file"


@pytest.fixture(autouse=True)
def _reset_cache() -> Iterator[None]:
    """Reset the cache, as in a new process."""
    cuda_libraries._load.cache_clear()
    yield
    cuda_libraries._load.cache_clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the calls of ONNX Runtime's function and print what the real one prints without CUDA."""
    directories: list[Any] = []

    def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
        directories.append(directory)
        print(MISSING)
        print("Please follow https://onnxruntime.ai/docs/install/#cuda-and-cudnn to install CUDA.")

    monkeypatch.setattr(ort, "preload_dlls", preload_dlls, raising=False)
    monkeypatch.setattr(cuda_libraries, "_package_folders", lambda: iter(()))
    return directories


def test_missing_libraries_are_returned_and_not_printed(calls: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    assert load_cuda_libraries() == load_cuda_libraries() == ("libcublas.so.13",)
    assert calls == [None]
    assert capfd.readouterr() == ("", "")


def test_all_folders_of_the_path_are_searched(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime itself searches only next to its own folder."""
    monkeypatch.undo()
    monkeypatch.setattr(ort, "preload_dlls", lambda directory=None: calls.append(directory), raising=False)
    for part in ("one/nvidia/cu13/lib", "one/nvidia/cu13/include", "two/nvidia/cudnn/lib"):
        (tmp_path / part).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "one"), str(tmp_path / "two")])
    load_cuda_libraries()
    assert calls[-1] is None
    ours = [each for each in calls[:-1] if each.startswith(str(tmp_path))]
    assert ours == [str(tmp_path / "one/nvidia/cu13/lib"), str(tmp_path / "two/nvidia/cudnn/lib")]


def test_failure_and_old_onnx_runtime_are_ignored(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(directory: str | None = None) -> None:
        raise RuntimeError("Invalid parameter")

    monkeypatch.setattr(ort, "preload_dlls", fail)
    assert load_cuda_libraries() == ()
    cuda_libraries._load.cache_clear()
    monkeypatch.delattr(ort, "preload_dlls")
    assert load_cuda_libraries() == ()


def test_libraries_are_loaded_for_cuda_sessions_only(
    calls: list[Any], tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(tiny_bundle)
    for device in ("cpu", "numpy"):
        open_session(bundle, device).close()
    assert calls == []
    cudart = StandInCudart()
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cudart)
    machine = StandInOrt(cudart)
    machine.install(monkeypatch)
    session = machine.session

    def open_after_loading(*arguments: Any, **options: Any) -> Any:
        assert calls == [None]
        return session(*arguments, **options)

    monkeypatch.setattr(ort, "InferenceSession", open_after_loading)
    open_session(bundle, "cuda:0").close()


def test_error_names_missing_libraries_if_the_provider_fails(
    calls: list[Any], tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StandInOrt(StandInCudart())
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", machine.cudart)
    machine.install(monkeypatch)
    machine.starts = False
    with pytest.raises(MissingBackendError, match="did not start") as caught:
        open_session(Bundle.open(tiny_bundle), "cuda:0")
    assert 'install "onnxruntime-gpu[cuda,cudnn]"' in caught.value.remedy
    assert "LD_LIBRARY_PATH" in caught.value.remedy
    assert caught.value.remedy.endswith("(not found: libcublas.so.13)")
