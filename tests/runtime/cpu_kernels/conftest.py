"""Fixtures that select an instruction set of the kernels."""

from collections.abc import Iterator

import pytest
from tests.runtime.cpu_kernels.kernel_sessions import available_sets

from lopa.runtime.cpu_kernels.kernel_library import KernelLibrary, kernel_library


@pytest.fixture
def library() -> Iterator[KernelLibrary]:
    """Return the library, and select the instruction set that it had before."""
    loaded = kernel_library()
    assert loaded is not None
    before = loaded.instruction_set
    assert before is not None
    yield loaded
    loaded.select(before)


@pytest.fixture(params=available_sets())
def instruction_set(library: KernelLibrary, request: pytest.FixtureRequest) -> str:
    library.select(request.param)
    assert library.instruction_set == request.param
    return str(request.param)
