"""Handling of Ctrl-C and SIGTERM while the command starts, while it works and when it is done.

The module imports little, since a signal that arrives before it is imported is not handled.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

_MESSAGES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_RESEND_SECONDS = 0.01
"""Seconds after which a lost interrupt is sent again."""


class Signals:
    """The signal handlers of one run. They are set only in the main thread, and not for ignored signals."""

    def __init__(self) -> None:
        self.received: int | None = None
        """Number of the signal that ended the work, or None if no signal did."""
        usual = (signal.SIG_DFL, signal.default_int_handler)
        found = {number: signal.getsignal(number) for number in _MESSAGES}
        self._before = {number: handler for number, handler in found.items() if handler in usual}
        self._hook = sys.unraisablehook

    def exit_immediately(self) -> None:
        """Let a signal end the process at once. Call this while nothing is open, or when the work is done."""
        self._handle(_end_process)

    def raise_exceptions(self) -> None:
        """Let a signal raise KeyboardInterrupt or SystemExit, so that files and devices are closed."""
        self._handle(self._raise)
        if self._before:
            sys.unraisablehook = self._send_again

    def restore(self) -> None:
        """Restore the handlers that were set before this object."""
        sys.unraisablehook = self._hook
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        sys.unraisablehook = self._hook
        try:
            for number in self._before:
                signal.signal(number, handler)
        except ValueError:  # not in the main thread
            self._before = {}

    def _raise(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.received = number
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _send_again(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Send a signal again whose exception Python dropped in a finalizer or a callback of the import system."""
        if self.received is not None and unraisable.exc_type in (KeyboardInterrupt, SystemExit):
            import threading

            threading.Timer(_RESEND_SECONDS, os.kill, (os.getpid(), self.received)).start()
        else:
            self._hook(unraisable)


def message_of_signal(number: int) -> str:
    """Return the message for a run that was ended by signal `number`."""
    return _MESSAGES.get(signal.Signals(number), f"ended by signal {number}")


def _end_process(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    try:
        os.write(2, f"{message_of_signal(number)}\n".encode())
    finally:
        os._exit(128 + number)
