"""Processes in which Triton runs: interpreted on the processor, and native where there is a GPU."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from tests.plugins import kernel_calls

Kernels = Callable[..., Any]


@pytest.fixture(scope="session", params=["interpreted", pytest.param("native", marks=pytest.mark.cuda)])
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """Calls a function of kernel_calls with its arguments, in a process that loaded Triton one way."""
    if sys.platform != "linux":
        pytest.skip("Triton is there for Linux only")
    context = multiprocessing.get_context("spawn")
    interpreted = request.param == "interpreted"
    with ProcessPoolExecutor(1, context, initializer=kernel_calls.choose, initargs=(interpreted,)) as pool:
        if not interpreted and not pool.submit(kernel_calls.has_gpu).result():
            pytest.skip("no CUDA device, or torch without CUDA: here the kernels run interpreted only")
        yield lambda call, *arguments: pool.submit(call, *arguments).result()
