"""Evaluation of the recorded calls, and the whole tool if onnxruntime-gpu is installed in a folder for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.vendors.check_cuda_provider import failures_of_calls

GRAPH = [
    "__cudaLaunchKernel",
    "cudaStreamBeginCapture",
    "__cudaLaunchKernel",
    "cudaStreamEndCapture",
    "cudaGraphLaunch",
]
LAUNCH = ["cudaGraphLaunch"]
PLAIN = ["cudaMemcpyAsync", "__cudaLaunchKernel"]


def test_correct_calls_pass() -> None:
    assert list(failures_of_calls(GRAPH, LAUNCH, PLAIN)) == []


@pytest.mark.parametrize(
    ("first", "again", "without", "expected"),
    [
        (PLAIN, LAUNCH, PLAIN, "should capture one CUDA graph"),
        (GRAPH * 2, LAUNCH, PLAIN, "should capture one CUDA graph"),
        ([*GRAPH[:2], "cudaMalloc", *GRAPH[2:]], LAUNCH, PLAIN, "capture of a CUDA graph: cudaMalloc"),
        ([*GRAPH[:2], *GRAPH[3:]], LAUNCH, PLAIN, "has no kernels"),
        (GRAPH, [*LAUNCH, "cudaStreamSynchronize"], PLAIN, "next forward of a bucket should only launch"),
        (GRAPH, PLAIN, PLAIN, "next forward of a bucket should only launch"),
        (GRAPH, LAUNCH, GRAPH, "without a bucket"),
        (GRAPH, LAUNCH, [*PLAIN, "cudaStreamSynchronize"], "without a bucket"),
    ],
)
def test_incorrect_calls_fail(first: list[str], again: list[str], without: list[str], expected: str) -> None:
    (failure,) = failures_of_calls(first, again, without)
    assert expected in failure


def test_real_provider(tiny_bundle: Path) -> None:
    folder = os.environ.get("ONNXRUNTIME_GPU")
    if folder is None:
        pytest.skip("set ONNXRUNTIME_GPU to a folder with onnxruntime-gpu (tools/vendors/check_cuda_provider.py)")
    headers = os.environ.get("CUDA_HEADERS", "/usr/local/cuda/include")
    command = [sys.executable, "-m", "tools.vendors.check_cuda_provider", tiny_bundle, folder, "--headers", headers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its next: 1 cudaGraphLaunch\n" in done.stdout
