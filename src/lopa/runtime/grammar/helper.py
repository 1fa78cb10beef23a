"""Client of the helper process: start it, send requests, and restart it after a crash.

This module does not depend on the engine. `preparation` has the functions that prepare a grammar.
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
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError, GrammarHelperError, raise_if_from_handler, stopped_preparation
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.grammar.grammar_source import GrammarRequest
from lopa.runtime.grammar.preparation import CheckedGrammar, too_costly

_MAIN = "lopa.runtime.grammar.helper_main"
_LENGTH = 8
_START_SECONDS = 120.0
"""Seconds for the start. A vocabulary of 152,064 tokens takes 2.2 s; a busy machine may take far longer."""
_WALL_FACTOR = 15.0
"""Wall-clock seconds allowed per second of processor time, on a busy machine."""
_POLL_SECONDS = 0.02
"""Seconds between two calls of `is_wanted`. A call that waits for a process calls it more often."""
_END_SECONDS = 2.0
_MAX_CACHED, _MAX_CACHED_CHARACTERS = 128, 2**16
"""Maximum cached results, and maximum characters of a cached grammar."""
_LOG = logging.getLogger(__name__)
T = TypeVar("T")


def is_helper_supported() -> bool:
    """Return whether this system supports the helper: fork, resource limits and passing of file descriptors."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds") and importlib.util.find_spec("resource") is not None


class GrammarHelper:
    """Client that prepares grammars in another process. All methods are thread-safe."""

    def __init__(self, bundle: Bundle, limits: GrammarLimits) -> None:
        """Store the settings. The process opens the folder of `bundle` and uses its chat template."""
        self._bundle, self._limits = bundle, limits
        self._lock = threading.RLock()  # a signal handler may interrupt its own thread
        self._places: dict[object, None] = {}
        """Calls that wait or run, in order. The first ones run, as many as there are processes."""
        self._cache: dict[GrammarRequest, CheckedGrammar | BadInputError] = {}
        self._closed = False
        # The lock guards the attributes below.
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the process unless it runs, and wait until it is ready. Raises GrammarHelperError."""
        _call_without_handlers(lambda _: self._start())

    def prepare(self, request: GrammarRequest, is_wanted: Callable[[], bool]) -> CheckedGrammar:
        """Return the prepared grammar.

        Raises BadInputError for an invalid or too costly grammar, and PreparationStoppedError once `is_wanted` returns
        False or the helper is closed. Raises GrammarHelperError if no helper can be started.
        """
        known = self._cache.get(request)
        if known is None:
            known = _call_without_handlers(
                lambda is_awaited: self._request(request, lambda: is_awaited() and is_wanted() and not self._closed)
            )
            self._store(request, known)
        if isinstance(known, BadInputError):
            raise BadInputError(known.received, expected=known.expected, remedy=known.remedy)
        return known

    def close(self) -> None:
        """End the process and all preparations in it. Further calls have no effect."""
        self._closed = True  # first: a handler that interrupts the holder of the lock must not wait for it
        with self._lock:
            self._end_process()

    def _start(self) -> None:
        if self._closed:
            raise stopped_preparation()
        with self._lock, _system_errors():
            self._running_control()

    def _request(self, request: GrammarRequest, is_wanted: Callable[[], bool]) -> CheckedGrammar | BadInputError:
        place = object()
        try:
            self._places[place] = None
            while place not in [*self._places][: self._limits.processes]:
                if not is_wanted():
                    raise stopped_preparation()
                time.sleep(_POLL_SECONDS / 10)
            for _ in range(2):  # the helper may die and lose the child's reply
                with _system_errors():
                    reply = self._reply(request, is_wanted)
                if reply is not None:
                    return self._read(request, reply)
            raise GrammarHelperError(
                "the grammar helper process died twice",
                expected="a helper that survives a request",
                remedy="check the machine's memory; the next request starts another helper",
            )
        finally:
            self._places.pop(place, None)

    def _read(self, request: GrammarRequest, reply: bytes) -> CheckedGrammar | BadInputError:
        if not reply:
            return too_costly(request, "preparing it exceeded the limits", self._limits)
        value = json.loads(reply)
        if "refused" in value:
            received, expected, remedy = value["refused"]
            return BadInputError(received, expected=expected, remedy=remedy)
        hints = tuple(hint.encode("latin-1") for hint in value["hints"])
        return CheckedGrammar(value["grammar"], hints, value["ending"].encode("latin-1"), value["exact"])

    def _reply(self, request: GrammarRequest, is_wanted: Callable[[], bool]) -> bytes | None:
        """Return a child's reply, empty if the child exceeded its limits, or None if the helper itself died."""
        content = json.dumps(asdict(request)).encode()
        unsent = memoryview(len(content).to_bytes(_LENGTH, "little") + content)
        received = bytearray()
        seconds = self._limits.cpu_seconds * _WALL_FACTOR
        latest = time.monotonic() + seconds
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._send(theirs)
            ours.setblocking(False)
            events = select.poll()  # select.select fails for more than 1,024 file descriptors
            while True:
                events.register(ours, select.POLLIN | (select.POLLOUT if unsent else 0))
                found = dict(events.poll(_POLL_SECONDS * 1000)).get(ours.fileno(), 0)
                if not is_wanted():
                    raise stopped_preparation()
                if time.monotonic() > latest:  # not cached, since the machine may be less busy next time
                    raise too_costly(request, f"preparing it took more than {seconds:g} s", self._limits)
                if found & ~select.POLLOUT:
                    more = _receive(ours)
                    if not more:
                        return None
                    received += more
                    size = int.from_bytes(received[:_LENGTH], "little")
                    if len(received) >= _LENGTH + size:
                        return bytes(received[_LENGTH : _LENGTH + size])
                elif found:
                    with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                        unsent = unsent[ours.send(unsent) :]

    def _send(self, theirs: socket.socket) -> None:
        """Pass a socket to the helper, restarting it if it has died."""
        with self._lock:
            try:
                socket.send_fds(self._running_control(), [b"?"], [theirs.fileno()])
            except OSError as error:  # a killed process closes its files before it can be waited for
                raise_if_from_handler(error)
                self._discard_process()
                socket.send_fds(self._running_control(), [b"?"], [theirs.fileno()])

    def _running_control(self) -> socket.socket:
        if self._closed:
            raise stopped_preparation()
        if self._process is not None and self._process.poll() is not None:
            self._discard_process()
        if self._control is None:
            self._process, self._control = _start_process(self._bundle, self._limits)
        return self._control

    def _discard_process(self) -> None:
        """Log that the process has died, and forget it. The next request starts another one."""
        _LOG.warning("grammar helper process died; starting another one")
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

    def _store(self, request: GrammarRequest, found: CheckedGrammar | BadInputError) -> None:
        if len(request.text) <= _MAX_CACHED_CHARACTERS:
            self._cache[request] = found
            for oldest in [*self._cache][:-_MAX_CACHED]:
                self._cache.pop(oldest, None)


def _call_without_handlers(call: Callable[[Callable[[], bool]], T]) -> T:
    """Return the result of `call`, in which no signal handler raises.

    Python runs handlers in the main thread, between any two bytecodes. An exception of theirs inside socket.socketpair
    or subprocess.Popen leaves open what these have made. In the main thread `call` therefore runs on another one. Its
    argument returns False once the main thread no longer waits.
    """
    ended: SimpleQueue[Future[T]] = SimpleQueue()
    is_awaited = True

    def run() -> None:
        outcome: Future[T] = Future()
        try:
            outcome.set_result(call(lambda: is_awaited))
        except BaseException as error:  # the main thread raises it
            outcome.set_exception(error)
        ended.put(outcome)

    try:
        if threading.current_thread() is not threading.main_thread():
            return call(lambda: True)
        try:  # without threading.Thread: a handler that interrupts its start may block it for ever
            start_new_thread(run, ())
        except RuntimeError as error:  # there is no thread left, or the interpreter ends
            raise_if_from_handler(error)
            return call(lambda: True)
        while True:
            with suppress(Empty):  # a wait without an end misses a signal that arrives just before it
                return ended.get(timeout=_POLL_SECONDS).result()
    finally:
        is_awaited = False


@contextmanager
def _system_errors() -> Iterator[None]:
    """Raise GrammarHelperError for an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise_if_from_handler(error)
        raise GrammarHelperError(
            f"the grammar helper process cannot be used: {error.strerror or error}",
            expected="a process that may open some more files and start another process",
            remedy="check this machine's memory, and its limits of open files and processes (ulimit -n, ulimit -u)",
        ) from error


def _receive(ours: socket.socket) -> bytes:
    """Return received bytes, empty if the other side has closed."""
    try:
        return ours.recv(2**16)
    except ConnectionResetError:  # the other side exited before it read the whole request
        return b""


def _start_process(bundle: Bundle, limits: GrammarLimits) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the helper and return it once it is ready. Raises GrammarHelperError."""
    control, theirs = socket.socketpair()
    code = f"import sys; sys.path[:] = sys.argv[3:]; import runpy; runpy.run_module({_MAIN!r}, run_name='__main__')"
    arguments = [str(theirs.fileno()), str(bundle.path), *sys.path]
    own = {"chat_template": bundle.manifest.chat_template, "digests": bundle.digests, "signed": dict(bundle.signed)}
    settings = json.dumps({"limits": asdict(limits), **own}).encode()
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with ExitStack() as undo:
        undo.callback(control.close)
        with theirs:
            process = undo.enter_context(
                subprocess.Popen(
                    [_python(), "-c", code, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,  # its output is read until it is ready
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C goes to this process, which ends the helper
                    env=environment,
                )
            )
        undo.callback(process.kill)
        assert process.stderr is not None
        with process.stderr as errors:
            control.settimeout(_START_SECONDS)
            try:
                control.sendall(len(settings).to_bytes(_LENGTH, "little") + settings)
                ready = control.recv(1)
            except OSError as error:
                raise_if_from_handler(error)
                ready = b""
            if not ready:
                process.kill()
                raise GrammarHelperError(
                    f"the grammar helper process did not start: {_last_line(errors.read())}",
                    expected="a process of this Python that reads the bundle's tokenizer",
                    remedy="check this machine's memory and process limits",
                )
        undo.pop_all()
    control.settimeout(None)
    return process, control


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "no error output"


def _python() -> str:
    """Return the path of this Python, or of its installation if Python is embedded in another program."""
    if Path(sys.executable).name.startswith("python"):
        return sys.executable
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return shutil.which(name, path=str(Path(sys.prefix, "bin"))) or shutil.which(name) or sys.executable
