"""What puts the work of one forward into a stream's queue, recorded once as a CUDA graph and launched again and again.

Knows no engine: a graph does again what it did, at the same addresses, whatever changed meanwhile.
"""

from collections.abc import Callable
from typing import Any

from lopa.runtime.cuda.calls import CudaCalls, CudaError

_NO_FLAGS = 0


class CaptureError(Exception):
    """This work cannot be captured. It can still be run."""


class CudaGraphs:
    """CUDA graphs of one stream, on the thread that made it."""

    def __init__(self, cuda: CudaCalls, stream: int) -> None:
        self._cuda = cuda
        self._stream = stream

    def captured(self, work: Callable[[], None]) -> Any:
        """What `work` puts in the queue, as a graph that can be launched; nothing of it runs now.

        Raises CaptureError when it is not possible or `work` raises; the stream is as before then.
        """
        # Of this thread alone: threads of other devices may do meanwhile what a capture forbids, e.g. allocate.
        mode = self._cuda.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._cuda("cudaStreamBeginCapture", self._stream, mode)
        failure: Exception | None = None
        try:
            work()
        except Exception as error:
            failure = error
        try:
            graph = self._cuda("cudaStreamEndCapture", self._stream)
        except CudaError as error:  # the work did what cannot be captured, which ends the capture
            self._cuda("cudaGetLastError", allowed=(error.code,))  # or the next call of another library reports it
            raise CaptureError(str(failure or error)) from (failure or error)
        try:
            if failure is not None:
                raise CaptureError(str(failure)) from failure
            return self._cuda("cudaGraphInstantiate", graph, _NO_FLAGS)
        finally:
            self._cuda("cudaGraphDestroy", graph)

    def launch(self, graph: Any) -> None:
        """Put all of it in the queue again."""
        self._cuda("cudaGraphLaunch", graph, self._stream)

    def destroy(self, graph: Any) -> None:
        """Free it; it is not in the queue."""
        self._cuda("cudaGraphExecDestroy", graph)
