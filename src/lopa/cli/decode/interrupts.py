"""Handling of Ctrl-C in a conversation. It stops an answer between two steps, and raises an exception at the prompt."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from lopa.runtime.decoding.step import Step


class StoppedError(Exception):
    """The user pressed Ctrl-C during an answer."""


@contextmanager
def stoppable() -> Iterator[Callable[[Step], None]]:
    """Yield a callback for every step. After a Ctrl-C it raises StoppedError, while no device is computing.

    A second Ctrl-C before the end of the step raises KeyboardInterrupt at once.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if received:
            raise KeyboardInterrupt
        received.append(number)

    def stop_if_interrupted(step: Step) -> None:  # noqa: ARG001
        if received:
            raise StoppedError

    with _handled_by(note):
        yield stop_if_interrupted


@contextmanager
def interrupts_as_exceptions() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, so that it does not end the command at the prompt."""
    with _handled_by(signal.default_int_handler):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let Ctrl-C call `handler`. If Ctrl-C is ignored, as under nohup, it stays ignored."""
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
