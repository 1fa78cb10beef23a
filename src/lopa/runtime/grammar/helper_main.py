"""Helper process: load a bundle's vocabulary, and fork a child with resource limits for every grammar.

`helper` starts it and sends the limits and the chat template over the control socket. Each child gets its own socket,
reads one request and writes one reply. It ends at its limits, or when the other side closes its socket. The process
ends when its control socket is closed.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import edit_bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import BadInputError, LopaError
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.grammar.grammar_source import GrammarRequest
from lopa.runtime.grammar.preparation import check_grammar
from lopa.runtime.grammar.vocabulary import Vocabulary, vocabulary_from_tokenizer
from lopa.runtime.text.tokenizer import Tokenizer

READY = b"+"
NEW_REQUEST = b"?"
LENGTH = struct.Struct("<Q")
"""Length prefix of requests and replies: bytes of the following JSON. An empty reply means that the child died."""
_NICE = 5
"""Niceness: running answers take precedence over waiting grammars."""
_WARM_UP = GrammarRequest("json_schema", '{"type": "object"}', 64)
_PAGE = resource.getpagesize()


def main(control_fd: int, bundle_path: str) -> None:
    """Serve until the other side closes the control socket."""
    control = socket.socket(fileno=control_fd)
    settings = json.loads(_receive(control))
    limits = GrammarLimits(**settings["limits"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent process
    # Both sides need the same template, because it decides which tokens have symbols in an ending.
    opened = replace(Bundle.open(Path(bundle_path)), signed=settings["signed"])
    bundle = edit_bundle(opened, chat_template=settings["chat_template"])
    vocabulary = vocabulary_from_tokenizer(Tokenizer.open(bundle), bundle.manifest)
    bundle.check_unchanged()
    digest = bundle.manifest_sha256
    if bundle.digests != settings["digests"] or bundle.signed.get(MANIFEST_NAME, digest) != digest:
        # tokens of another vocabulary would be wrong without an error
        sys.exit(f"{bundle.path} was replaced by another bundle since it was opened")
    vocabulary.prepare()
    check_grammar(_WARM_UP, vocabulary, limits)
    gc.freeze()  # children share these pages
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())  # to nowhere: the library writes its failures there
    with control:
        control.sendall(READY)
        _Children(control, vocabulary, limits).serve()


class _Children:
    """Running children with copies of their sockets, which show when a child or its caller ends."""

    def __init__(self, control: socket.socket, vocabulary: Vocabulary, limits: GrammarLimits) -> None:
        self._control, self._vocabulary, self._limits = control, vocabulary, limits
        self._running: dict[int, socket.socket] = {}
        """Sockets by process ID."""
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
                poll.register(each, 0)  # an empty event mask still reports a closed connection
            found = dict(poll.poll())
            for each in self._running.values():
                poll.unregister(each)
            if self._ended.fileno() in found:
                self._ended.recv(4096)
            self._reap()
            for process, each in self._running.items():
                if found.get(each.fileno(), 0) & select.POLLHUP:
                    os.kill(process, signal.SIGKILL)
            if self._control.fileno() in found and not self._accept():
                break
        for process in self._running:
            os.kill(process, signal.SIGKILL)

    def _accept(self) -> bool:
        """Fork a child for the next request. Return False when no more will come."""
        message, fds, _, _ = socket.recv_fds(self._control, len(NEW_REQUEST), 1)
        if not message:
            return False
        caller = socket.socket(fileno=fds[0])
        process = os.fork()
        if not process:
            self._run_child(caller)
        self._running[process] = caller
        return True

    def _reap(self) -> None:
        """Send empty replies for children that died without one, and forget all that have ended."""
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            with self._running.pop(process) as caller:
                if status:
                    try:
                        caller.send(LENGTH.pack(0), socket.MSG_DONTWAIT)
                    except OSError:
                        continue  # the caller has exited

    def _run_child(self, caller: socket.socket) -> None:
        """Answer one request and exit, with code 0 after a reply."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            request = GrammarRequest(**json.loads(_receive(caller)))
            _limit(self._limits)
            reply = json.dumps(_reply(request, self._vocabulary, self._limits)).encode()
            signal.setitimer(signal.ITIMER_PROF, 0)  # stop the timer, which could interrupt the reply
            caller.sendall(LENGTH.pack(len(reply)) + reply)
            status = 0
        finally:
            os._exit(status)  # skip the parent's cleanup


def _receive(caller: socket.socket) -> bytes:
    with caller.makefile("rb") as received:
        (size,) = LENGTH.unpack(received.read(LENGTH.size))
        return received.read(size)  # cut if the other side has closed the socket, which is then no JSON


def _limit(limits: GrammarLimits) -> None:
    """Limit this process from now on: end it at its processor time, fail its allocations at its memory limit."""
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
        return 2**33  # unknown, but systems without /proc do not enforce this limit


def _reply(request: GrammarRequest, vocabulary: Vocabulary, limits: GrammarLimits) -> dict[str, Any]:
    """Return the result or the error of the grammar as JSON values. Bytes are encoded as latin-1."""
    try:
        found = check_grammar(request, vocabulary, limits)
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
        # One line, as its reader shows, and before the end of `refused` closes the socket, which kills this process.
        sys.stderr.write(" ".join(str(refused).split()) + "\n")
        sys.exit(1)
