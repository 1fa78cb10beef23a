"""Real commands whose bundle opens only when the test permits it.

The process waits for a mutex before it opens the graph. Like the opening of a large graph, this is a single native call
that no signal interrupts.
"""

import os
from dataclasses import dataclass
from pathlib import Path

EXITING = "the interpreter exits\n"
"""Last line on standard error, unless the process ends without the interpreter's cleanup."""
_PROGRAM = f"""
import atexit, ctypes, sys, threading
import lopa.runtime.decoder
from lopa.cli.main import main
from lopa.runtime.errors import *

permission, failure = sys.argv.pop(1), sys.argv.pop(1)
atexit.register(print, {EXITING!r}, end="", file=sys.stderr)
library = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)  # zeros are PTHREAD_MUTEX_INITIALIZER
library.pthread_mutex_lock(mutex)
open_session = lopa.runtime.decoder.session_from_devices

def open_after_permission(*arguments, **options):
    library.pthread_mutex_lock(mutex)
    if failure:
        raise eval(failure)
    return open_session(*arguments, **options)

def wait_for_permission():
    open(permission).read()
    library.pthread_mutex_unlock(mutex)

threading.Thread(target=wait_for_permission, daemon=True).start()
lopa.runtime.decoder.session_from_devices = open_after_permission
main()
"""


@dataclass(frozen=True)
class SlowOpening:
    """A program for `python`, and the permission that it waits for."""

    permission: Path
    """FIFO that the process reads."""
    failure: str
    """Expression of the error that the opening raises, or empty."""

    @property
    def program(self) -> tuple[str, ...]:
        """Arguments of Python before those of lopa-export."""
        return ("-c", _PROGRAM, str(self.permission), self.failure)

    def permit(self) -> None:
        """Let the running process open its bundle."""
        os.close(os.open(self.permission, os.O_WRONLY | os.O_NONBLOCK))


def slow_opening(folder: Path, failure: str = "") -> SlowOpening:
    """Return a slow opening with a FIFO in `folder`."""
    os.mkfifo(folder / "permission")
    return SlowOpening(folder / "permission", failure)
