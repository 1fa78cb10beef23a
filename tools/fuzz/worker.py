"""Runs cases, each in a process of its own under limits, and says what became of it. Knows no kind of case.

Processes are forked from this one, which has imported everything and must not have started a thread: pools of threads
do not survive a fork, and a session of ONNX Runtime has one.
"""

import gc
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from tools.fuzz.case import Class, MakeCase, Material, Outcome, class_of_error, place_of_error

PROCESSOR_SECONDS = 8
ADDRESS_BYTES = 4 * 2**30
"""Beyond what the process has when it is forked."""
WALL_SECONDS = 180.0
_MEMORY_WORDS = ("bad_alloc", "memory allocation of", "MemoryError", "Failed to allocate memory", "bad allocation")


@dataclass(frozen=True)
class Asked:
    """One case to run."""

    kind: str
    seed: int
    folder: Path


@dataclass
class _Running:
    asked: Asked
    process: int
    pipe: int
    until: float
    said: bytes = b""


def outcomes(
    asked: Iterable[Asked], kinds: Mapping[str, MakeCase], material: Material, *, jobs: int
) -> Iterator[Outcome]:
    """What became of each case, in the order in which they end."""
    waiting = iter(asked)
    running: dict[int, _Running] = {}
    while True:
        while len(running) < jobs and (following := next(waiting, None)) is not None:
            process, pipe = _forked(partial(_work, following, kinds[following.kind], material))
            running[pipe] = _Running(following, process, pipe, time.monotonic() + WALL_SECONDS)
        if not running:
            return
        ready, _, _ = select.select(list(running), [], [], 0.5)
        for pipe in ready:
            piece = os.read(pipe, 65536)
            running[pipe].said += piece
            if not piece:
                yield _ended(running.pop(pipe))
        for one in [one for one in running.values() if time.monotonic() > one.until]:
            os.kill(one.process, signal.SIGKILL)
            one.until = float("inf")


def answer_in_a_process(make: Any) -> Any:
    """Return what `make()` gives in a forked process: this one stays without threads. Raises RuntimeError."""
    process, pipe = _forked(lambda write: os.write(write, json.dumps(make()).encode()))
    with os.fdopen(pipe, "rb") as file:
        text = file.read()
    os.waitpid(process, 0)
    if not text:
        raise RuntimeError("what is not mutated gives no answer")
    return json.loads(text)


def _forked(work: Callable[[int], object]) -> tuple[int, int]:
    """Start a process that writes to a pipe. Return its id and the end to read."""
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        return process, read
    try:
        os.close(read)
        work(write)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _work(asked: Asked, make: MakeCase, material: Material, write: int) -> None:
    """The life of the forked process."""
    os.setpgid(0, 0)
    asked.folder.mkdir(parents=True, exist_ok=True)
    log = os.open(asked.folder / "output.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["TMPDIR"] = str(asked.folder)
    tempfile.tempdir = None
    said: dict[str, Any] = {"found": "foreign", "mutation": "?", "error": "the case could not be made"}
    try:
        case = make(random.Random(f"{asked.kind} {asked.seed}"), asked.folder, material)
        said = {"found": "crash", "mutation": case.mutation, "may_differ": case.may_differ}
        os.write(write, json.dumps(said).encode() + b"\n")
        gc.freeze()
        _limit(max(PROCESSOR_SECONDS, case.processor_seconds))
        said |= _class_of_run(case.run, case.expected)
    except BaseException as error:
        said |= {"error": f"{type(error).__name__}: {error}", "place": place_of_error(error)}
        traceback.print_exc()
    os.write(write, json.dumps(said).encode() + b"\n")


def _limit(processor_seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + processor_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_addresses(ADDRESS_BYTES)


def limit_addresses(more: int) -> None:
    """Limit this process to `more` bytes of addresses beyond those it has. A limit it has already stays."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    upper = pages * resource.getpagesize() + more
    _, limit = resource.getrlimit(resource.RLIMIT_AS)
    upper = upper if limit == resource.RLIM_INFINITY else min(upper, limit)
    resource.setrlimit(resource.RLIMIT_AS, (upper, upper))


def _class_of_run(run: Any, expected: object) -> dict[str, Any]:
    stray: list[BaseException] = []
    threading.excepthook = lambda args: stray.append(args.exc_value or RuntimeError(str(args.exc_type)))
    sys.unraisablehook = lambda args: stray.append(args.exc_value or RuntimeError(str(args.err_msg)))
    found: Class
    try:
        answer = run()
        found = "fine" if expected is None else "same" if answer == expected else "differ"
        error: BaseException | None = None
    except BaseException as raised:
        error, found = raised, class_of_error(raised)
    if stray and found in ("fine", "same", "differ", "typed"):
        error, found = stray[0], "memory" if isinstance(stray[0], MemoryError) else "foreign"
    if error is None:
        return {"found": found}
    try:
        words = f"{type(error).__name__}: {error}"
    except Exception as unprintable:
        words, found = f"{type(error).__name__}, which cannot be printed: {unprintable}", "foreign"
    if found != "typed":
        traceback.print_exception(error)
    return {"found": found, "error": words[:400], "place": place_of_error(error)}


def _ended(one: _Running) -> Outcome:
    """Read what the process said, and how it ended."""
    os.close(one.pipe)
    _, status, used = os.wait4(one.process, 0)
    with suppress(ProcessLookupError, PermissionError):  # processes that the case started
        os.killpg(one.process, signal.SIGKILL)
    lines = one.said.splitlines()
    said: dict[str, Any] = json.loads(lines[-1]) if lines else {"found": "crash", "mutation": "?"}
    seconds = used.ru_utime + used.ru_stime
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    log = one.asked.folder / "output.txt"
    text = log.read_bytes().decode("utf-8", "replace") if log.exists() else ""
    found = said["found"]
    if number in (signal.SIGXCPU, signal.SIGKILL):
        found, said["error"] = "hang", f"{seconds:.1f} s of processor time, at most {WALL_SECONDS:.0f} s in all"
    elif found == "crash":
        said["error"] = f"signal {number}, exit status {status}: {text[-300:]}"
        if any(word in text for word in _MEMORY_WORDS):
            found = "memory"
    elif found in ("typed", "same", "fine", "differ") and "Traceback (most recent call last)" in text:
        found, said["error"] = "foreign", "a traceback was printed: " + text[-300:]
    assert found in get_args(Class)
    return Outcome(one.asked.kind, one.asked.seed, seconds=seconds, **{**said, "found": found})
