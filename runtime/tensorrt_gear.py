"""One gear of a TensorRT engine: its context, and the CUDA graph of its forward. Knows no request.

A graph has the addresses of its inputs and outputs in it, and the state of its context. So a context has one graph,
and once the addresses are others the graph is destroyed before the context is told.
"""

import logging
from collections.abc import Mapping
from typing import Any

from lopa.runtime.cuda_graphs import CaptureError, CudaGraphs
from lopa.runtime.tensorrt_plan import ProfileContext

_log = logging.getLogger(__name__)


class GearRunner:
    """Runs the first forward at an address plainly, captures the second, and launches the graph from then on.

    The plain run is what TensorRT asks for: what it puts off after a shape was set is done then.
    """

    def __init__(self, context: ProfileContext, graphs: CudaGraphs) -> None:
        """`context` knows the shapes of the gear."""
        self._context = context
        self._graphs = graphs
        self._graph: Any = None
        self._addresses: dict[str, int] = {}
        self._can_be_captured = True

    def enqueue(self, addresses: Mapping[str, int]) -> None:
        """Put a forward in the queue, in which none of this gear is. Raises EngineFailedError."""
        if addresses != self._addresses:
            self.forget_graph()
            self._context.set_addresses(addresses)
            self._context.enqueue()
            self._addresses = dict(addresses)
            return
        if self._graph is None and self._can_be_captured:
            self._capture()
        if self._graph is None:
            self._context.enqueue()
        else:
            self._graphs.launch(self._graph)

    def forget_graph(self) -> None:
        """Free the graph, which is not in the queue."""
        graph, self._graph = self._graph, None
        if graph is not None:
            self._graphs.destroy(graph)

    def _capture(self) -> None:
        try:
            self._graph = self._graphs.captured(self._context.enqueue)
        except CaptureError as error:
            # E.g. a layer that waits for the GPU. Such a gear is slower, and as right as before.
            self._can_be_captured = False
            _log.warning("a gear runs without a CUDA graph: %s", error)
