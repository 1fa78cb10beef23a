"""Run cases, each in its own process with limits, and classify the outcomes.

Processes are forked from this one, which has imported everything. It must not have started threads, since thread pools
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

from tools.fuzz.case import CaseOutcome, Class, MakeCase, Material, class_of_error, place_of_error

PROCESSOR_SECONDS = 8
ADDRESS_BYTES = 4 * 2**30
"""Bytes of address space in addition to the forked process's own."""
WALL_SECONDS = 180.0
_MEMORY_WORDS = ("bad_alloc", "memory allocation of", "MemoryError", "Failed to allocate memory", "bad allocation")


@dataclass(frozen=True)
class CaseId:
    """Identification and folder of a case."""

    kind: str
    seed: int
    folder: Path


@dataclass
class _Running:
    case_id: CaseId
    process: int
    pipe: int
    until: float
    result: bytes = b""


def run_cases(
    case_ids: Iterable[CaseId], kinds: Mapping[str, MakeCase], material: Material, *, jobs: int
) -> Iterator[CaseOutcome]:
    """Run the cases and yield their outcomes in the order in which they end."""
    waiting = iter(case_ids)
    running: dict[int, _Running] = {}
    while True:
        while len(running) < jobs and (following := next(waiting, None)) is not None:
            process, pipe = _fork(partial(_run_case, following, kinds[following.kind], material))
            running[pipe] = _Running(following, process, pipe, time.monotonic() + WALL_SECONDS)
        if not running:
            return
        ready, _, _ = select.select(list(running), [], [], 0.5)
        for pipe in ready:
            piece = os.read(pipe, 65536)
            running[pipe].result += piece
            if not piece:
                yield _outcome_of_process(running.pop(pipe))
        for one in [one for one in running.values() if time.monotonic() > one.until]:
            os.kill(one.process, signal.SIGKILL)
            one.until = float("inf")


def answer_of_process(make: Any) -> Any:
    """Return the result of `make()` from a forked process, so this one stays without threads.

    Raises RuntimeError if it fails.
    """
    process, pipe = _fork(lambda write: os.write(write, json.dumps(make()).encode()))
    with os.fdopen(pipe, "rb") as file:
        text = file.read()
    os.waitpid(process, 0)
    if not text:
        raise RuntimeError("the unmutated input gives no answer")
    return json.loads(text)


def _fork(work: Callable[[int], object]) -> tuple[int, int]:
    """Start a process that writes to a pipe. Return its id and the reading end."""
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


def _run_case(case_id: CaseId, make: MakeCase, material: Material, write: int) -> None:
    """Run a case in the forked process."""
    os.setpgid(0, 0)
    case_id.folder.mkdir(parents=True, exist_ok=True)
    log = os.open(case_id.folder / "output.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["TMPDIR"] = str(case_id.folder)
    tempfile.tempdir = None
    result: dict[str, Any] = {"found": "foreign", "mutation": "?", "error": "the case could not be made"}
    try:
        case = make(random.Random(f"{case_id.kind} {case_id.seed}"), case_id.folder, material)
        result = {"found": "crash", "mutation": case.mutation, "may_differ": case.may_differ}
        os.write(write, json.dumps(result).encode() + b"\n")
        gc.freeze()
        _limit(max(PROCESSOR_SECONDS, case.processor_seconds))
        result |= _class_of_run(case.run, case.expected)
    except BaseException as error:
        result |= {"error": f"{type(error).__name__}: {error}", "place": place_of_error(error)}
        traceback.print_exc()
    os.write(write, json.dumps(result).encode() + b"\n")


def _limit(processor_seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + processor_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_addresses(ADDRESS_BYTES)


def limit_addresses(more: int) -> None:
    """Limit this process to `more` bytes of address space beyond the present. A lower limit stays."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limited = pages * resource.getpagesize() + more
    _, limit = resource.getrlimit(resource.RLIMIT_AS)
    limited = limited if limit == resource.RLIM_INFINITY else min(limited, limit)
    resource.setrlimit(resource.RLIMIT_AS, (limited, limited))


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


def _outcome_of_process(one: _Running) -> CaseOutcome:
    """Read the process's messages and exit status."""
    os.close(one.pipe)
    _, status, used = os.wait4(one.process, 0)
    with suppress(ProcessLookupError, PermissionError):  # kill processes that the case started
        os.killpg(one.process, signal.SIGKILL)
    lines = one.result.splitlines()
    result: dict[str, Any] = json.loads(lines[-1]) if lines else {"found": "crash", "mutation": "?"}
    seconds = used.ru_utime + used.ru_stime
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    log = one.case_id.folder / "output.txt"
    text = log.read_bytes().decode("utf-8", "replace") if log.exists() else ""
    found = result["found"]
    if number in (signal.SIGXCPU, signal.SIGKILL):
        found, result["error"] = "hang", f"{seconds:.1f} s of processor time, at most {WALL_SECONDS:.0f} s in all"
    elif found == "crash":
        result["error"] = f"signal {number}, exit status {status}: {text[-300:]}"
        if any(word in text for word in _MEMORY_WORDS):
            found = "memory"
    elif found in ("typed", "same", "fine", "differ") and "Traceback (most recent call last)" in text:
        found, result["error"] = "foreign", "a traceback was printed: " + text[-300:]
    assert found in get_args(Class)
    return CaseOutcome(one.case_id.kind, one.case_id.seed, seconds=seconds, **{**result, "found": found})
