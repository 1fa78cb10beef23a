"""The stand-in CUDA runtime with stream capture and graph launches."""

# Names as in cuda-bindings:
# ruff: noqa: N802, N803, N815

import threading
from collections.abc import Callable, Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from tests.runtime.cuda.stand_in_cudart import SUCCESS, StandInCudart

Work = tuple[Callable[[], None], tuple[int, ...]]


class CaptureCode(IntEnum):
    """Further members of cudaError_t."""

    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901


class Graph:
    """A graph, executable or not."""

    def __init__(self, works: Sequence[Work]) -> None:
        self.works = list(works)


class StandInGraphs(StandInCudart):
    """The CUDA runtime of one process, with graphs."""

    def __init__(self, devices: int = 4) -> None:
        self._captures: dict[int, list[Work] | None] = {}
        """Captured work by stream, or None if the capture is invalidated."""
        self._threads: dict[int, int] = {}
        """Capturing thread by stream. In thread-local mode, a capture restricts this thread only."""
        self._graphs: list[Graph] = []
        super().__init__(devices)
        self.cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)
        self.launches = 0

    def cudaStreamBeginCapture(self, stream: Any, mode: Any) -> tuple[Any, ...]:
        self._require(mode == 1, "threads of other devices may allocate")
        self._stream(stream)
        self._require(int(stream) not in self._captures, "a stream captures already")
        self._captures[int(stream)] = []
        self._threads[int(stream)] = threading.get_ident()
        return (SUCCESS,)

    def cudaStreamEndCapture(self, stream: Any) -> tuple[Any, ...]:
        self._require(int(stream) in self._captures, "a stream does not capture")
        works = self._captures.pop(int(stream))
        del self._threads[int(stream)]
        if works is None:
            return CaptureCode.cudaErrorStreamCaptureInvalidated, None
        return SUCCESS, self._keep(Graph(works))

    def cudaGraphInstantiate(self, graph: Graph, flags: int) -> tuple[Any, ...]:
        self._require(graph in self._graphs and flags == 0, "no graph, or unsupported flags")
        return SUCCESS, self._keep(Graph(graph.works))

    def cudaGraphLaunch(self, graphExec: Graph, stream: Any) -> tuple[Any, ...]:
        self._require(graphExec in self._graphs, "a graph launched that was destroyed")
        self._require(int(stream) not in self._captures, "launched into a capture")
        self.launches += 1
        for work, addresses in graphExec.works:
            self.enqueue(stream, work, addresses)
        return (SUCCESS,)

    def cudaGraphExecDestroy(self, graphExec: Graph) -> tuple[Any, ...]:
        works = {id(work) for work, _ in graphExec.works}
        queued = (id(work) for stream in self._streams.values() for work, _ in stream.queue)
        self._require(not works & set(queued), "a graph destroyed that is in a queue")
        self._graphs.remove(graphExec)
        return (SUCCESS,)

    def cudaGraphDestroy(self, graph: Graph) -> tuple[Any, ...]:
        self._graphs.remove(graph)
        return (SUCCESS,)

    def cudaGetLastError(self) -> tuple[Any, ...]:
        return (SUCCESS,)

    def cudaStreamSynchronize(self, stream: Any) -> tuple[Any, ...]:
        self._require(int(stream) not in self._captures, "a stream that captures was waited for")
        return super().cudaStreamSynchronize(stream)

    def cudaMalloc(self, size: int) -> tuple[Any, ...]:
        self._require(threading.get_ident() not in self._threads.values(), "memory allocated by a thread that captures")
        return super().cudaMalloc(size)

    def enqueue(self, stream: Any, work: Callable[[], None], addresses: tuple[int, ...]) -> None:
        """Enqueue work that uses memory at `addresses` on a stream, or add it to the stream's capture."""
        if int(stream) not in self._captures:
            super().enqueue(stream, work, addresses)
            return
        self._stream(stream)
        captured = self._captures[int(stream)]
        if captured is not None:
            captured.append((work, addresses))

    def is_capturing(self, stream: Any) -> bool:
        return int(stream) in self._captures

    def invalidate_capture(self, stream: Any) -> None:
        """Simulate an operation that cannot be captured."""
        self._captures[int(stream)] = None

    @property
    def graphs(self) -> list[Graph]:
        """Graphs that were not destroyed."""
        return self._graphs

    @property
    def left(self) -> list[str]:
        """Names of resources that were not freed."""
        return [*super().left, *("graph" for _ in self._graphs)]

    def _keep(self, graph: Graph) -> Graph:
        self._graphs.append(graph)
        return graph
