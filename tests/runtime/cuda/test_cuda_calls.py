"""Calls of the CUDA runtime and captures of other threads."""

import threading
from typing import Any

import pytest
from tests.runtime.cuda.stand_in_cudart import StandInCudart, cudaError_t

from lopa.runtime.cuda.cuda_calls import CAPTURE_LOCK, CudaCalls, CudaError


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
