"""The side of the helper process that decodes: it starts the helper, asks it, and starts another when it has died.

Knows no engine. What a grammar is prepared to is `preparation`'s.
"""

import importlib.util
import json
import logging
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

from lopa.runtime.errors import BadInputError, GrammarHelperError, stopped_preparation
from lopa.runtime.grammar.limits import GrammarLimits
from lopa.runtime.grammar.preparation import CheckedGrammar, too_costly
from lopa.runtime.grammar.source import GrammarRequest

_MAIN = "lopa.runtime.grammar.helper_main"
_LENGTH = 8
_START_SECONDS = 120.0
"""A vocabulary of 152,064 tokens takes 2.2 s; a busy machine may take far longer."""
_WALL_FACTOR = 15.0
"""Seconds for each second of processor time, on a machine that does other things."""
_LOOK_SECONDS = 0.02
"""Between two looks whether the request is still wanted."""
_END_SECONDS = 2.0
_MAX_KEPT, _MAX_KEPT_CHARACTERS = 128, 2**16
"""Results of equal requests are kept: so many, each for a text of so many characters at most."""
_LOG = logging.getLogger(__name__)


def helper_runs_here() -> bool:
    """Return whether this system has what the helper needs: fork, limits, sockets that pass on files."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds") and importlib.util.find_spec("resource") is not None


class GrammarHelper:
    """Prepares grammars in a process of its own. Any thread may ask."""

    def __init__(self, bundle: Path, limits: GrammarLimits, *, chat_template: str | None = None) -> None:
        """`chat_template` is the one that takes the place of the bundle's own, if any does."""
        self._bundle, self._limits, self._chat_template = bundle, limits, chat_template
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(limits.processes)
        # Under the lock, from here on.
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False
        self._kept: OrderedDict[GrammarRequest, CheckedGrammar | BadInputError] = OrderedDict()

    def start(self) -> None:
        """Start the process unless it runs, and wait until it is ready. Raises GrammarHelperError."""
        with self._lock:
            self._running_control()

    def prepare(self, request: GrammarRequest, is_wanted: Callable[[], bool]) -> CheckedGrammar:
        """Return the prepared grammar.

        Raises BadInputError for a grammar that cannot be used or takes more than its limits, PreparationStoppedError
        once `is_wanted` returns False or the helper is closed, and GrammarHelperError where no helper can be started.
        """
        with self._lock:
            known = self._kept.get(request)
        if known is None:
            known = self._asked(request, is_wanted)
            self._keep(request, known)
        if isinstance(known, BadInputError):
            raise BadInputError(known.received, expected=known.expected, remedy=known.remedy)
        return known

    def close(self) -> None:
        """End the process and whatever is prepared in it. Closing twice is no error."""
        with self._lock:
            self._closed = True
            self._end_process()

    def _asked(self, request: GrammarRequest, is_wanted: Callable[[], bool]) -> CheckedGrammar | BadInputError:
        while not self._places.acquire(timeout=_LOOK_SECONDS):
            if not is_wanted():
                raise stopped_preparation()
        try:
            for _ in range(2):  # the helper may have died, and takes the child's reply with it
                reply = self._reply(request, is_wanted)
                if reply is not None:
                    return self._read(request, reply)
            raise GrammarHelperError(
                "the helper process that prepares grammars has died twice",
                expected="a helper that outlives a request",
                remedy="look at the machine's memory; the next request starts another helper",
            )
        finally:
            self._places.release()

    def _read(self, request: GrammarRequest, reply: bytes) -> CheckedGrammar | BadInputError:
        if not reply:
            return too_costly(request, "preparing it takes more than the limits", self._limits)
        value = json.loads(reply)
        if "refused" in value:
            received, expected, remedy = value["refused"]
            return BadInputError(received, expected=expected, remedy=remedy)
        hints = tuple(hint.encode("latin-1") for hint in value["hints"])
        return CheckedGrammar(value["grammar"], hints, value["ending"].encode("latin-1"), value["exact"])

    def _reply(self, request: GrammarRequest, is_wanted: Callable[[], bool]) -> bytes | None:
        """Return a child's reply, empty where it died at its limits; None where the helper itself is gone."""
        content = json.dumps(asdict(request)).encode()
        unsent = memoryview(len(content).to_bytes(_LENGTH, "little") + content)
        received = bytearray()
        seconds = self._limits.cpu_seconds * _WALL_FACTOR
        latest = time.monotonic() + seconds
        mine, theirs = socket.socketpair()
        with mine:
            with theirs:
                self._send(theirs)
            mine.setblocking(False)
            events = select.poll()  # select.select refuses a process with more than 1,024 files
            while True:
                events.register(mine, select.POLLIN | (select.POLLOUT if unsent else 0))
                found = dict(events.poll(_LOOK_SECONDS * 1000)).get(mine.fileno(), 0)
                if not is_wanted() or self._closed:
                    raise stopped_preparation()
                if time.monotonic() > latest:  # not kept: another time the machine may be less busy
                    raise too_costly(request, f"preparing it takes more than {seconds:g} s", self._limits)
                if found & ~select.POLLOUT:
                    more = _received(mine)
                    if not more:
                        return None
                    received += more
                    size = int.from_bytes(received[:_LENGTH], "little")
                    if len(received) >= _LENGTH + size:
                        return bytes(received[_LENGTH : _LENGTH + size])
                elif found:
                    with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                        unsent = unsent[mine.send(unsent) :]

    def _send(self, theirs: socket.socket) -> None:
        """Hand a socket to the helper, which is started anew where it has died."""
        with self._lock:
            try:
                socket.send_fds(self._running_control(), [b"?"], [theirs.fileno()])
            except OSError:  # a process that is killed closes its files before its end can be waited for
                self._bury_process()
                socket.send_fds(self._running_control(), [b"?"], [theirs.fileno()])

    def _running_control(self) -> socket.socket:
        if self._closed:
            raise stopped_preparation()
        if self._process is not None and self._process.poll() is not None:
            self._bury_process()
        if self._control is None:
            self._process, self._control = _started(self._bundle, self._limits, self._chat_template)
        return self._control

    def _bury_process(self) -> None:
        """Say that the process has died, and forget it: the next request starts another one."""
        _LOG.warning("the helper process that prepares grammars has ended; another one is started")
        self._end_process()

    def _end_process(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._control = None

    def _keep(self, request: GrammarRequest, found: CheckedGrammar | BadInputError) -> None:
        if len(request.text) <= _MAX_KEPT_CHARACTERS:
            with self._lock:
                self._kept[request] = found
                if len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)


def _received(mine: socket.socket) -> bytes:
    """Return what has come, nothing where the other side has gone."""
    try:
        return mine.recv(2**16)
    except ConnectionResetError:  # it has not read the whole request
        return b""


def _started(
    bundle: Path, limits: GrammarLimits, chat_template: str | None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the helper; return it once it is ready. Raises GrammarHelperError."""
    control, theirs = socket.socketpair()
    code = f"import sys; sys.path[:] = sys.argv[3:]; import runpy; runpy.run_module({_MAIN!r}, run_name='__main__')"
    arguments = [str(theirs.fileno()), str(bundle), *sys.path]
    settings = json.dumps({"limits": asdict(limits), "chat_template": chat_template}).encode()
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with theirs, ExitStack() as undo:
        undo.callback(control.close)
        process = subprocess.Popen(
            [_python(), "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # until it is ready
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for this process, which ends the helper
            env=environment,
        )
        undo.pop_all()
    assert process.stderr is not None
    with process.stderr as said:
        control.settimeout(_START_SECONDS)
        try:
            control.sendall(len(settings).to_bytes(_LENGTH, "little") + settings)
            ready = control.recv(1)
        except OSError:
            ready = b""
        if not ready:
            control.close()
            process.kill()
            process.wait()
            raise GrammarHelperError(
                f"the helper process that prepares grammars did not start: {_last_line(said.read())}",
                expected="a process of this Python that reads the bundle's tokenizer",
                remedy="look at the memory and the process limits of this machine",
            )
    control.settimeout(None)
    return process, control


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"


def _python() -> str:
    """Return the path of this Python; where it is embedded in another program, that of its installation."""
    if Path(sys.executable).name.startswith("python"):
        return sys.executable
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return shutil.which(name, path=str(Path(sys.prefix, "bin"))) or shutil.which(name) or sys.executable
