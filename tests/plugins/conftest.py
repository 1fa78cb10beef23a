"""Processes in which Triton runs: interpreted on the CPU, and native if there is a GPU."""

import importlib.metadata
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.plugins import kernel_calls

from lopa.runtime.cuda.driver import cuda_device
from lopa.runtime.errors import MissingBackendError

Kernels = Callable[..., Any]


@pytest.fixture(scope="session", params=["interpreted", pytest.param("native", marks=pytest.mark.cuda)])
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """Yield a function that calls kernel_calls in a process that loaded Triton interpreted or native."""
    interpreted = request.param == "interpreted"
    numpy = tuple(map(int, np.__version__.split(".")[:2]))
    reason = reason_against_interpreter(_version("triton"), numpy) if interpreted else None
    if reason is not None:
        pytest.skip(reason)
    if not interpreted:
        try:
            cuda_device(0)
        except MissingBackendError as error:
            pytest.skip(f"the kernels run only in the interpreter here: {error.received}")
    with _process(interpreted=interpreted) as call:
        if not interpreted and not call(kernel_calls.has_gpu):
            pytest.skip("no CUDA device, or torch without CUDA: the kernels run only in the interpreter here")
        yield call


def reason_against_interpreter(triton: tuple[int, ...] | None, numpy: tuple[int, ...]) -> str | None:
    """Return why Triton cannot interpret kernels with this numpy, or None. Versions are (major, minor)."""
    if triton is None:
        return "needs Triton, which is not installed"
    if triton >= (3, 7) or numpy < (2, 4):
        return None
    # It uses arrays with one element as scalars, which numpy rejects since 2.4: a TypeError in every kernel.
    return (
        f"Triton {_text(triton)} interprets nothing with numpy {_text(numpy)}: it needs numpy below 2.4, or Triton 3.7"
    )


def _version(distribution: str) -> tuple[int, int] | None:
    try:
        major, minor = importlib.metadata.version(distribution).split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return None
    return int(major), int(minor)


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@pytest.fixture(scope="session")
def compiler() -> Iterator[Kernels]:
    """Yield `kernels`, native, for calls that compile and run nothing."""
    with _process(interpreted=False) as call:
        yield call


@contextmanager
def _process(*, interpreted: bool) -> Iterator[Kernels]:
    if sys.platform != "linux":
        pytest.skip("Triton is available on Linux only")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=kernel_calls.choose, initargs=(interpreted,)) as pool:
        yield lambda call, *arguments: pool.submit(call, *arguments).result()
