"""Rules that the stand-ins for TensorRT's runtime and for CUDA graphs enforce."""

from types import ModuleType

import numpy as np
import pytest
from tests.runtime.cuda.stand_in_graphs import CaptureCode, StandInGraphs
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.cuda.cuda_calls import CudaCalls
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.graphs import CaptureError, CudaGraphs
from lopa.runtime.sessions.session import open_session


def test_context_does_not_change_while_its_graph_exists(bundle: Bundle, trt: ModuleType, cuda: StandInGraphs) -> None:
    session, batch = open_session(bundle, "tensorrt:0"), random_batch(np.random.default_rng(0), (0,), 1, 40, 8)
    for _ in range(3):
        sequential(session).forward(batch)
    assert trt.engines.forwards == [(0, "plain"), (0, "captured")]
    assert cuda.launches == 2
    (context,) = (each for each in trt.engines._contexts if trt.engines._graphs_of(each))
    shape, address = context.state.shapes["input_ids"], context.state.addresses["entropy"]
    context.set_input_shape("input_ids", shape)
    context.set_tensor_address("entropy", address)
    context.set_device_memory(*context.state.scratch)
    assert trt.engines.violations == [
        f"the {what} of a context was set while its graph exists" for what in ("shape", "address", "memory")
    ]
    context.state.addresses["entropy"] = address + 4
    sequential(session).forward(batch)
    assert trt.engines.violations[3:] == ["a graph ran after its context got another shape or address"]
    trt.engines.violations.clear()
    session.close()


def test_invalidated_capture_raises(cuda: StandInGraphs) -> None:
    """The stream stays usable."""
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
