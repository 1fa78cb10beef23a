"""Ctrl-C and SIGTERM: what they do while the command starts, while it works and when it is done.

Imports little, since nothing is heard before it is imported.
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

_SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_AGAIN = 0.01
"""Seconds after which a lost interrupt is sent again."""


class Signals:
    """The signals of one run; one that the caller has us ignore stays ignored. Only the main thread hears any."""

    def __init__(self) -> None:
        self.heard: int | None = None
        """The signal that ended the work, whatever a library made of it on its way."""
        usual = (signal.SIG_DFL, signal.default_int_handler)
        found = {number: signal.getsignal(number) for number in _SAID}
        self._before = {number: handler for number, handler in found.items() if handler in usual}
        self._hook = sys.unraisablehook

    def end_at_once(self) -> None:
        """A signal ends the process: nothing is open yet, or all is done. No import can turn it into an error."""
        self._handle(_end_process)

    def end_the_work(self) -> None:
        """A signal raises KeyboardInterrupt or SystemExit, so that files and devices are closed."""
        self._handle(self._raise)
        if self._before:
            sys.unraisablehook = self._send_again

    def restore(self) -> None:
        """As it was before this object."""
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
        self.heard = number
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _send_again(self, unraisable: sys.UnraisableHookArgs) -> None:
        """An interrupt that fell into a finalizer or a callback of the import system was dropped there."""
        if self.heard is not None and unraisable.exc_type in (KeyboardInterrupt, SystemExit):
            import threading

            threading.Timer(_AGAIN, os.kill, (os.getpid(), self.heard)).start()
        else:
            self._hook(unraisable)


def said_by_signal(number: int) -> str:
    """What the user is told of signal `number`."""
    return _SAID.get(signal.Signals(number), f"ended by signal {number}")


def _end_process(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    try:
        os.write(2, f"{said_by_signal(number)}\n".encode())
    finally:
        os._exit(128 + number)
