"""Skip the tests of WebGPU where there is no adapter."""

import pytest

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.webgpu.webgpu_graph import can_run
from lopa.runtime.webgpu.webgpu_library import webgpu_adapters


@pytest.fixture(autouse=True)
def _adapter(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("webgpu") is None:
        return
    try:
        adapters = webgpu_adapters()
    except MissingBackendError as error:
        pytest.skip(f"WebGPU: {error}")
    if not any(map(can_run, adapters)):
        pytest.skip("no WebGPU adapter: make test-webgpu unpacks a software one")
