"""One shape bucket of a TensorRT engine: its contexts and CUDA graphs.

A graph contains the addresses of its inputs and outputs, and the state of its context. Every recurring set of addresses
therefore gets its own context and graph. A forward in parts has one set per part.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from lopa.runtime.cuda.graphs import CaptureError, CudaGraphs
from lopa.runtime.tensorrt.plan import ProfileContext

MAX_GRAPHS = 8
"""Maximum number of CUDA graphs per shape bucket."""
_log = logging.getLogger(__name__)


class BucketRunner:
    """Runner of one shape bucket's forwards, at any addresses."""

    def __init__(
        self,
        new_context: Callable[[], ProfileContext],
        has_room: Callable[[], bool],
        graphs: CudaGraphs,
        *,
        can_be_captured: bool,
    ) -> None:
        """Create a runner. `new_context` returns a context with the bucket's shapes set. Its errors propagate.

        `has_room` returns True if the GPU has memory for another context.
        """
        self._new_context = new_context
        self._has_room = has_room
        self._can_be_captured = can_be_captured
        self._graphs = graphs
        self._unused: list[ProfileContext] = [new_context()]
        self._forwards: list[_Forward] = []
        """Forwards in order of creation."""

    def enqueue(self, addresses: Mapping[str, int]) -> None:
        """Enqueue a forward. No forward of this bucket at other addresses may be queued. Raises EngineFailedError."""
        forward = next((each for each in self._forwards if each.addresses == addresses), None)
        if forward is None:
            forward = _Forward(self._free_context(), dict(addresses), self._graphs, self._can_be_captured)
            self._forwards.append(forward)
        forward.enqueue()

    def close(self) -> None:
        """Free the graphs, which must not be queued, and drop the contexts."""
        self._unused.clear()
        while self._forwards:
            self._forwards.pop().free_graph()

    def _free_context(self) -> ProfileContext:
        if self._unused:
            return self._unused.pop()
        if len(self._forwards) < MAX_GRAPHS and self._has_room():
            return self._new_context()
        oldest = self._forwards.pop(0)
        oldest.free_graph()  # before its context gets other addresses
        return oldest.context


class _Forward:
    """Forward at fixed addresses. The first run is plain, the second is captured, later runs launch the graph.

    TensorRT requires the plain run, which completes work deferred after setting a shape.
    """

    def __init__(
        self, context: ProfileContext, addresses: Mapping[str, int], graphs: CudaGraphs, can_be_captured: bool
    ) -> None:
        self.context = context
        self.addresses = addresses
        self._graphs = graphs
        self._graph: Any = None
        self._has_run = False
        self._can_be_captured = can_be_captured
        context.set_addresses(addresses)

    def enqueue(self) -> None:
        if self._has_run and self._graph is None and self._can_be_captured:
            self._capture()
        if self._graph is None:
            self.context.enqueue()
        else:
            self._graphs.launch(self._graph)
        self._has_run = True

    def free_graph(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:
            self._graphs.destroy(graph)

    def _capture(self) -> None:
        try:
            self._graph = self._graphs.capture(self.context.enqueue)
        except CaptureError as error:
            # A layer that waits for the GPU cannot be captured, for example. Such a forward is slower, but still
            # correct.
            self._can_be_captured = False
            _log.warning("a shape bucket runs without a CUDA graph: %s", error)
