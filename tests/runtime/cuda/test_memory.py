"""CudaMemory on the stand-in CUDA runtime, and its calls compared with the real package."""

import ast
import contextlib
import inspect
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.cuda.stand_in_cudart import StandInCudart, cudaError_t, cudaMemcpyKind
from tests.runtime.cuda.stand_in_graphs import CaptureCode, StandInGraphs

import lopa.runtime
from lopa.runtime.accelerator.device_memory import ALIGNMENT
from lopa.runtime.cuda.cuda_calls import CAPTURE_LOCK, CudaCalls, CudaError, CudaMemoryError, load_cuda
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.graphs import CaptureError, CudaGraphs
from lopa.runtime.cuda.packed_forward import Slot

RUNTIME = Path(lopa.runtime.__file__).parent


def calls_in_source() -> Iterator[tuple[str, int]]:
    """Yield the name and number of arguments of every CUDA runtime call in lopa.runtime."""
    for path in RUNTIME.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call | ast.Tuple):
                parts = node.args if isinstance(node, ast.Call) else node.elts
                name = parts[0].value if parts and isinstance(parts[0], ast.Constant) else None
                if isinstance(name, str) and re.fullmatch("cuda(?!Error)[A-Z][A-Za-z0-9]+", name):
                    yield name, len(parts) - 1


@pytest.fixture(scope="module")
def real() -> object:
    return pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-bindings")


def test_calls_match_the_real_package(real: object) -> None:
    found = set(calls_in_source())
    assert {"cudaMalloc", "cudaFreeHost", "cudaMemcpy2DAsync", "cudaStreamDestroy"} <= {name for name, _ in found}
    for name, count in found:
        assert len(inspect.signature(getattr(real, name)).parameters) == count, name


def test_stand_in_matches_the_real_package(real: object) -> None:
    stand_in = StandInGraphs()
    names = [name for name in dir(StandInGraphs) if name.startswith("cuda")]
    assert {name for name, _ in calls_in_source()} <= set(names)
    for name in names:
        theirs, ours = getattr(real, name), getattr(stand_in, name)
        if name in ("cudaError_t", "cudaMemcpyKind"):
            assert {each.name: int(each) for each in ours}.items() <= {e.name: int(e) for e in theirs}.items()
        elif callable(ours):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name
        else:
            assert ours == theirs
    assert cudaMemcpyKind is StandInCudart.cudaMemcpyKind
    for code in CaptureCode:
        assert getattr(real.cudaError_t, code.name) == code  # type: ignore[attr-defined]
    for name, number in vars(stand_in.cudaStreamCaptureMode).items():
        assert getattr(real.cudaStreamCaptureMode, name) == number  # type: ignore[attr-defined]


def test_real_package_reports_codes_and_meanings(real: object) -> None:
    """A failed call raises an error with the call and the code on every machine."""
    calls = load_cuda()
    with pytest.raises(CudaError, match=r"cudaSetDevice returned cudaError[A-Z]\w+: \w+"):
        calls("cudaSetDevice", 12345)


def memory_of(cudart: StandInCudart, device: int = 0) -> CudaMemory:
    return CudaMemory(CudaCalls(cudart), device)


@pytest.mark.parametrize(
    ("call", "before"),
    [("cudaMallocHost", 0), ("cudaMallocHost", 1), ("cudaEventCreateWithFlags", 0), ("cudaMalloc", 0), ("", 0)],
)
def test_a_slot_leaves_nothing(cudart: StandInCudart, call: str, before: int) -> None:
    """Neither one whose memory or event cannot be had, nor one that is freed."""
    memory = memory_of(cudart)
    cudart.codes[call] = [None] * before + [cudaError_t.cudaErrorMemoryAllocation]
    with contextlib.suppress(CudaMemoryError):
        Slot(memory, 100, 200, 300, is_usual=False).free()
        assert not call
    assert (cudart.allocated(0), memory._pinned, memory._events) == (0, set(), [])
    memory.close()


def test_upload_and_download(cudart: StandInCudart) -> None:
    memory, rng = memory_of(cudart), np.random.default_rng(1)
    arrays = [rng.integers(0, 1 << 30, size) for size in (7, 200_000, 1, 5000)]
    places = [memory.allocate(array.nbytes) for array in arrays]
    assert all(place % ALIGNMENT == 0 for place in places)
    for _ in range(2):  # the second time reuses the pinned memory
        for array, place in zip(arrays, places, strict=True):
            memory.upload(place, array)
            array += 1  # the copy is still queued, and must keep the old values
        back = [np.empty_like(array) for array in arrays]
        for array, place in zip(back, places, strict=True):
            memory.download(array, place)
        memory.synchronize()
        for found, sent in zip(back, arrays, strict=True):
            np.testing.assert_array_equal(found, sent - 1)
    assert cudart.calls["cudaMallocHost"] == 5  # no more than after the first time
    assert cudart.calls["cudaStreamSynchronize"] == 2
    memory.close()
    memory.close()


def test_copy_pieces_and_fill_zero(cudart: StandInCudart) -> None:
    memory, rng = memory_of(cudart), np.random.default_rng(2)
    source = rng.integers(1, 255, (5, 48), np.uint8)
    start, target = memory.allocate(source.nbytes), memory.allocate(5 * 64)
    memory.upload(start, source)
    memory.fill_zero(target, 5 * 64)
    memory.copy_pieces(target + 8, 64, start + 4, 48, 40, 5)
    memory.copy_pieces(target, 64, start, 48, 8, 1)
    found = np.empty((5, 64), np.uint8)
    memory.download(found, target)
    memory.synchronize()
    expected = np.zeros((5, 64), np.uint8)
    expected[:, 8:48] = source[:, 4:44]
    expected[0, :8] = source[0, :8]
    np.testing.assert_array_equal(found, expected)
    memory.free(start)
    assert cudart.allocated(0) == 5 * 64 + ALIGNMENT
    memory.close()


def test_full_device_raises(cudart: StandInCudart) -> None:
    cudart.capacity = 10_000
    memory = memory_of(cudart)
    with pytest.raises(
        CudaError, match=r"cudaMalloc returned cudaErrorMemoryAllocation: .*\n.*\n.*stop other programs"
    ):
        memory.allocate(20_000)
    memory.allocate(5000)
    memory.close()


def test_everything_is_freed_when_the_device_is_lost(cudart: StandInCudart) -> None:
    memory = memory_of(cudart)
    memory.upload(memory.allocate(64), np.zeros(64, np.uint8))
    memory.synchronize()
    cudart.codes["cudaStreamSynchronize"] = [cudaError_t.cudaErrorIllegalAddress] * 2
    with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
        memory.synchronize()
    with pytest.raises(CudaError, match="cudaStreamSynchronize"):
        memory.close()
    memory.close()


def test_invalidated_capture_raises() -> None:
    """The stream stays usable."""
    cuda = StandInGraphs()
    memory = CudaMemory(CudaCalls(cuda), 0)
    graphs = CudaGraphs(CudaCalls(cuda), memory.stream)
    with pytest.raises(CaptureError, match=CaptureCode.cudaErrorStreamCaptureInvalidated.name):
        graphs.capture(lambda: cuda.invalidate_capture(memory.stream))

    def fails() -> None:
        raise RuntimeError("no forward")

    with pytest.raises(CaptureError, match="no forward"):
        graphs.capture(fails)
    assert cuda.graphs == []
    memory.synchronize()
    memory.close()


def test_failing_call_is_explained_before_another_thread_captures(
    cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = threading.Event()

    def capture() -> None:
        with CAPTURE_LOCK.exclusive():
            captured.set()

    thread = threading.Thread(target=capture)
    explain = cudart.cudaGetErrorString
    early: list[bool] = []

    def explain_while_a_capture_waits(error: cudaError_t) -> tuple[Any, ...]:
        thread.start()
        early.append(captured.wait(0.2))
        return explain(error)

    monkeypatch.setattr(cudart, "cudaGetErrorString", explain_while_a_capture_waits)
    cudart.codes["cudaMalloc"] = [cudaError_t.cudaErrorMemoryAllocation]
    with pytest.raises(CudaError, match="cudaErrorMemoryAllocation"):
        CudaCalls(cudart)("cudaMalloc", 8)
    thread.join()
    assert early == [False]
    assert captured.is_set()
