"""Errors and warnings that TensorRT logs while it builds or runs, collected for error messages."""

from types import ModuleType
from typing import Any, Protocol

_MAX_MESSAGES = 20
"""Maximum number of collected messages. TensorRT repeats itself, and the last messages have the cause."""
_MAX_REPORTED = 5


class Messages(Protocol):
    """An ILogger that collects errors and warnings."""

    kept: list[str]
    """Last messages, in order."""


def messages_logger(trt: ModuleType) -> Messages:
    """Return a logger of the module `trt`. It may be called from any thread."""

    class _Messages(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.kept: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR, trt.ILogger.WARNING):
                self.kept = [*self.kept, msg][-_MAX_MESSAGES:]

    return _Messages()


def last_messages(messages: Messages) -> str:
    """Return the last messages, one per line, to append to an error message. The text is empty if there are none."""
    return "".join(f"\n  TensorRT: {message}" for message in messages.kept[-_MAX_REPORTED:])
