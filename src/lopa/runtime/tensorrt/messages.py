"""What TensorRT says while it builds or runs: errors and warnings, kept for messages of our own."""

from types import ModuleType
from typing import Any, Protocol

_KEPT = 20
"""Messages: TensorRT repeats itself, and the last say why it gave up."""
_SHOWN = 5


class Messages(Protocol):
    """An ILogger that keeps errors and warnings."""

    kept: list[str]
    """The last ones, in order."""


def messages_logger(trt: ModuleType) -> Messages:
    """A logger of the module `trt`; may be called from any thread."""

    class _Messages(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.kept: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR, trt.ILogger.WARNING):
                self.kept = [*self.kept, msg][-_KEPT:]

    return _Messages()


def last_messages(messages: Messages) -> str:
    """The last ones, a line each, to be put behind a message of our own; empty when there are none."""
    return "".join(f"\n  TensorRT: {message}" for message in messages.kept[-_SHOWN:])
