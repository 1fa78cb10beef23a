"""What puts the work of one forward into a stream's queue, recorded once as a CUDA graph and launched again and again.

Knows no engine: a graph does again what it did, at the same addresses, whatever changed meanwhile.
"""

from collections.abc import Callable
from typing import Any, Protocol


class StreamGraphs(Protocol):
    """CUDA graphs of one stream."""

    def captured(self, work: Callable[[], None]) -> Any:
        """What `work` puts in the queue, as a graph that can be launched; nothing of it runs now.

        Raises CaptureError for work that cannot be captured, and what `work` raises; the stream is as before then.
        """

    def launch(self, graph: Any) -> None:
        """Put all of it in the queue again."""

    def destroy(self, graph: Any) -> None:
        """Free it; it is not in the queue."""


class CaptureError(Exception):
    """This work cannot be captured; it can still be run."""
