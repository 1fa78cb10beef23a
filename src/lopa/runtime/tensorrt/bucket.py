"""One bucket of a TensorRT engine: its contexts, and the CUDA graphs of its forward. Knows no request.

A graph has the addresses of its inputs and outputs in it, and the state of its context. So every set of addresses that
comes back, of which a forward in parts has one for each part, gets a context and a graph of its own.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from lopa.runtime.cuda.graphs import CaptureError, CudaGraphs
from lopa.runtime.tensorrt.plan import ProfileContext

MAX_GRAPHS = 8
"""Of one bucket."""
_log = logging.getLogger(__name__)


class BucketRunner:
    """Runs a bucket at whatever addresses it is given."""

    def __init__(
        self,
        new_context: Callable[[], ProfileContext],
        has_room: Callable[[], bool],
        graphs: CudaGraphs,
        *,
        can_be_captured: bool,
    ) -> None:
        """`new_context` makes a context that knows the shapes of the bucket; raises what it raises.

        `has_room` says whether the GPU has memory for one more.
        """
        self._new_context = new_context
        self._has_room = has_room
        self._can_be_captured = can_be_captured
        self._graphs = graphs
        self._unused: list[ProfileContext] = [new_context()]
        self._forwards: list[_Forward] = []
        """The one that was begun longest ago first."""

    def enqueue(self, addresses: Mapping[str, int]) -> None:
        """Put a forward in the queue, in which none of this bucket at other addresses is. Raises EngineFailedError."""
        forward = next((each for each in self._forwards if each.addresses == addresses), None)
        if forward is None:
            forward = _Forward(self._context_for_new(), dict(addresses), self._graphs, self._can_be_captured)
            self._forwards.append(forward)
        forward.enqueue()

    def close(self) -> None:
        """Free the graphs, which are not in the queue, and forget the contexts."""
        self._unused.clear()
        while self._forwards:
            self._forwards.pop().free_graph()

    def _context_for_new(self) -> ProfileContext:
        if self._unused:
            return self._unused.pop()
        if len(self._forwards) < MAX_GRAPHS and self._has_room():
            return self._new_context()
        oldest = self._forwards.pop(0)
        oldest.free_graph()  # before its context is told other addresses
        return oldest.context


class _Forward:
    """The forward at some addresses: run plainly at first, captured the second time, launched from then on.

    The plain run is what TensorRT asks for: what it puts off after a shape was set is done then.
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
            self._graph = self._graphs.captured(self.context.enqueue)
        except CaptureError as error:
            # E.g. a layer that waits for the GPU. Such a forward is slower, and as right as before.
            self._can_be_captured = False
            _log.warning("a bucket runs without a CUDA graph: %s", error)
