"""Processes in which Triton runs: interpreted on the processor, and native where there is a GPU."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.plugins import kernel_calls

Kernels = Callable[..., Any]


@pytest.fixture(scope="session", params=["interpreted", pytest.param("native", marks=pytest.mark.cuda)])
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """Calls a function of kernel_calls with its arguments, in a process that loaded Triton one way."""
    interpreted = request.param == "interpreted"
    with _process(interpreted=interpreted) as call:
        if not interpreted and not call(kernel_calls.has_gpu):
            pytest.skip("no CUDA device, or torch without CUDA: here the kernels run interpreted only")
        yield call


@pytest.fixture(scope="session")
def compiler() -> Iterator[Kernels]:
    """As `kernels`, native: for calls that compile and run nothing."""
    with _process(interpreted=False) as call:
        yield call


@contextmanager
def _process(*, interpreted: bool) -> Iterator[Kernels]:
    if sys.platform != "linux":
        pytest.skip("Triton is there for Linux only")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=kernel_calls.choose, initargs=(interpreted,)) as pool:
        yield lambda call, *arguments: pool.submit(call, *arguments).result()
