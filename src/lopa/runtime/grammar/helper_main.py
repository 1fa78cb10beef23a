"""The helper process: it has a bundle's vocabulary ready, and forks a child with limits for every grammar.

Started by `helper`, which sends the limits and the chat template over the control socket. Each child gets a socket of
its own, reads one request from it and writes one reply. A child ends at its limits, or when the other side closes its
socket. The process ends with its control socket.
"""

import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import edited_bundle
from lopa.runtime.errors import BadInputError, LopaError
from lopa.runtime.grammar.limits import GrammarLimits
from lopa.runtime.grammar.preparation import checked_grammar
from lopa.runtime.grammar.source import GrammarRequest
from lopa.runtime.grammar.vocabulary import Vocabulary, vocabulary_from_tokenizer
from lopa.runtime.text.tokenizer import Tokenizer

READY = b"+"
NEW_REQUEST = b"?"
LENGTH = struct.Struct("<Q")
"""In front of a request and of a reply: the bytes of JSON behind it. A reply of none says that the child has died."""
_NICE = 5
"""Answers that run come before grammars that wait."""
_WARM_UP = GrammarRequest("json_schema", '{"type": "object"}', 64)
_PAGE = resource.getpagesize()


def main(control_fd: int, bundle_path: str) -> None:
    """Serve until the other side closes the control socket."""
    control = socket.socket(fileno=control_fd)
    settings = json.loads(_received(control))
    limits = GrammarLimits(**settings["limits"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    # The template decides which tokens have a place among the bytes of an ending: it has to be the same on both sides.
    bundle = edited_bundle(Bundle.open(Path(bundle_path)), chat_template=settings["chat_template"])
    vocabulary = vocabulary_from_tokenizer(Tokenizer.open(bundle), bundle.manifest)
    vocabulary.prepare()
    checked_grammar(_WARM_UP, vocabulary, limits)
    gc.freeze()  # children share these pages
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # where the library writes of what it fails at
    with control:
        control.sendall(READY)
        _Children(control, vocabulary, limits).serve()


class _Children:
    """The children that run, each with a copy of its socket, by which its end and its caller's are seen."""

    def __init__(self, control: socket.socket, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self._control, self._vocabulary, self._limits = control, vocabulary, limits
        self._running: dict[int, socket.socket] = {}
        """By process id."""
        self._ended, wake = socket.socketpair()
        for end in (self._ended, wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.detach(), warn_on_full_buffer=False)

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        while True:
            for each in self._running.values():
                poll.register(each, 0)  # tells of a caller that hung up
            found = dict(poll.poll())
            for each in self._running.values():
                poll.unregister(each)
            if self._ended.fileno() in found:
                self._ended.recv(4096)
            self._bury()
            for process, each in self._running.items():
                if found.get(each.fileno(), 0) & select.POLLHUP:
                    os.kill(process, signal.SIGKILL)
            if self._control.fileno() in found and not self._take():
                break
        for process in self._running:
            os.kill(process, signal.SIGKILL)

    def _take(self) -> bool:
        """Fork a child for a request that came; False when there will be no more."""
        message, fds, _, _ = socket.recv_fds(self._control, len(NEW_REQUEST), 1)
        if not message:
            return False
        caller = socket.socket(fileno=fds[0])
        process = os.fork()
        if not process:
            self._be_child(caller)
        self._running[process] = caller
        return True

    def _bury(self) -> None:
        """Tell the callers of children that have died without a reply, and forget all that have ended."""
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            with self._running.pop(process) as caller:
                if status:
                    try:
                        caller.send(LENGTH.pack(0), socket.MSG_DONTWAIT)
                    except OSError:
                        continue  # the caller has gone

    def _be_child(self, caller: socket.socket) -> None:
        """Answer one request and exit: 0 with a reply."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            request = GrammarRequest(**json.loads(_received(caller)))
            _limit(self._limits)
            reply = json.dumps(_reply(request, self._vocabulary, self._limits)).encode()
            signal.setitimer(signal.ITIMER_PROF, 0)  # a reply is written whole
            caller.sendall(LENGTH.pack(len(reply)) + reply)
            status = 0
        finally:
            os._exit(status)  # without what the parent would clean up


def _received(caller: socket.socket) -> bytes:
    (size,) = LENGTH.unpack(_exactly(caller, LENGTH.size))
    return _exactly(caller, size)


def _exactly(caller: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        more = caller.recv(size - len(content))
        if not more:
            raise EOFError  # the other side has gone
        content += more
    return bytes(content)


def _limit(limits: GrammarLimits) -> None:
    """From here on: end this process at its processor time, fail its allocations at its memory."""
    os.nice(_NICE)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
    upper = _address_space() + limits.memory_bytes
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard != resource.RLIM_INFINITY:
        upper = min(upper, hard)
    resource.setrlimit(resource.RLIMIT_AS, (upper, hard))


def _address_space() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * _PAGE
    except OSError:
        return 2**33  # not known: systems without /proc do not enforce this limit either


def _reply(request: GrammarRequest, vocabulary: Vocabulary, limits: GrammarLimits) -> dict[str, Any]:
    """Return what was found, or the error of the grammar, as JSON has it. Bytes are written as latin-1."""
    try:
        found = checked_grammar(request, vocabulary, limits)
    except BadInputError as error:
        return {"refused": [error.received, error.expected, error.remedy]}
    return {
        "grammar": found.grammar,
        "hints": [hint.decode("latin-1") for hint in found.hints],
        "ending": found.ending.decode("latin-1"),
        "exact": found.exact,
    }


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2])
    except LopaError as refused:
        sys.exit(str(refused))
