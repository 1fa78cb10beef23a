"""What Ctrl-C does in a conversation: it stops an answer between two steps, and at the prompt it is an exception."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from lopa.runtime.decoding.decoding import Step


class StoppedError(Exception):
    """The user pressed Ctrl-C during an answer."""


@contextmanager
def stoppable() -> Iterator[Callable[[Step], None]]:
    """What is to be told of every step: after a Ctrl-C it raises StoppedError, when no device is in mid-work.

    A second Ctrl-C before the step is done raises KeyboardInterrupt at once.
    """
    heard: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if heard:
            raise KeyboardInterrupt
        heard.append(number)

    def stop_if_heard(step: Step) -> None:  # noqa: ARG001
        if heard:
            raise StoppedError

    with _handled_by(note):
        yield stop_if_heard


@contextmanager
def interrupts_as_exceptions() -> Iterator[None]:
    """Ctrl-C is KeyboardInterrupt and no more: at the prompt it does not end the command."""
    with _handled_by(signal.default_int_handler):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C calls `handler`; where it is ignored, as under nohup, it stays so."""
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
