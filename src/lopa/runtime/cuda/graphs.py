"""CUDA graphs: capture the work of one forward once, and launch it repeatedly.

A graph always repeats its work at the addresses of its capture.
"""

from collections.abc import Callable
from typing import Any

from lopa.runtime.cuda.cuda_calls import CudaCalls, CudaError
from lopa.runtime.errors import raise_if_from_handler

_NO_FLAGS = 0


class CaptureError(Exception):
    """Work that cannot be captured as a CUDA graph. The work can still run without a graph."""


class CudaGraphs:
    """CUDA graphs of one stream, for use on the thread that created it."""

    def __init__(self, cuda: CudaCalls, stream: int) -> None:
        self._cuda = cuda
        self._stream = stream

    def capture(self, work: Callable[[], None]) -> Any:
        """Capture what `work` enqueues as a launchable graph, without running it.

        Raises CaptureError if this is impossible or `work` raises. The stream then stays usable.
        """
        # In thread-local mode, threads of other devices may make calls that a capture forbids, e.g. allocations.
        mode = self._cuda.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._cuda("cudaStreamBeginCapture", self._stream, mode)
        failure: Exception | None = None
        try:
            work()
        except Exception as error:
            failure = error
        try:
            graph = self._cuda("cudaStreamEndCapture", self._stream)
        except CudaError as error:  # the capture failed because of forbidden work
            self._cuda(
                "cudaGetLastError", allowed=(error.code,)
            )  # otherwise the next call of another library reports the error
            raise CaptureError(str(failure or error)) from (failure or error)
        try:
            if failure is not None:
                raise_if_from_handler(failure)
                raise CaptureError(str(failure)) from failure
            return self._cuda("cudaGraphInstantiate", graph, _NO_FLAGS)
        finally:
            self._cuda("cudaGraphDestroy", graph)

    def launch(self, graph: Any) -> None:
        """Enqueue the whole graph again."""
        self._cuda("cudaGraphLaunch", graph, self._stream)

    def destroy(self, graph: Any) -> None:
        """Free the graph. It must not be queued."""
        self._cuda("cudaGraphExecDestroy", graph)
