"""The helper process: same results as in this process, limits, restart, and end with its caller."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.grammar.costly import COSTLY, KEPT, REFUSED, USUAL

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError, GrammarHelperError, PreparationStoppedError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.grammar.grammar_source import GrammarRequest, matcher_from_request, request_from_config
from lopa.runtime.grammar.helper import GrammarHelper, is_helper_supported
from lopa.runtime.grammar.preparation import matcher_from_checked
from lopa.runtime.grammar.state import initial_state
from lopa.runtime.grammar.vocabulary import Vocabulary

pytestmark = pytest.mark.skipif(not is_helper_supported(), reason="this system has no fork, or no limits for a process")
ROOM = 64
WAIT = 60.0


def request_of(options: dict[str, str]) -> GrammarRequest:
    return request_from_config(GenerationConfig(**options), ROOM)  # type: ignore[arg-type]


def wanted() -> bool:
    return True


def until(predicate: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not predicate():
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.01)


def children(process: int) -> list[int]:
    """Return the children that any thread of `process` started."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return [int(each) for threads in lists for each in threads.read_text().split()]


def process_of(helper: GrammarHelper) -> int:
    assert helper._process is not None
    return helper._process.pid


@pytest.fixture(scope="module")
def helper(tiny_bundle: Path) -> Iterator[GrammarHelper]:
    """Yield a helper with little processor time, so that it rejects costly grammars soon."""
    made = GrammarHelper(Bundle.open(tiny_bundle), GrammarLimits(cpu_seconds=0.4))
    yield made
    made.close()


@pytest.fixture
def patient(tiny_bundle: Path) -> Iterator[GrammarHelper]:
    """Yield a helper with more processor time than any test needs."""
    made = GrammarHelper(Bundle.open(tiny_bundle), GrammarLimits(cpu_seconds=600.0, memory_bytes=2**34))
    yield made
    made.close()


@pytest.mark.parametrize("name", USUAL)
def test_results_equal_this_process_s(helper: GrammarHelper, vocabulary: Vocabulary, name: str) -> None:
    request = request_of(USUAL[name])
    here, prepared = matcher_from_request(request, vocabulary), helper.prepare(request, wanted)
    there = matcher_from_checked(request, prepared, vocabulary)
    assert (prepared.ending, there.hints) == (initial_state(here, request.positions).ending, here.hints)
    np.testing.assert_array_equal(there.allowed, here.allowed)
    assert there.allowed.any()


@pytest.mark.parametrize("name", REFUSED)
def test_errors_equal_this_process_s(helper: GrammarHelper, vocabulary: Vocabulary, name: str) -> None:
    request = request_of(REFUSED[name])
    with pytest.raises(BadInputError) as here:
        initial_state(matcher_from_request(request, vocabulary), request.positions)
    for _ in range(2):  # cached the second time
        with pytest.raises(BadInputError) as there:
            helper.prepare(request, wanted)
        assert str(there.value) == str(here.value)


@pytest.mark.parametrize("name", COSTLY)
def test_costly_grammar_is_rejected(helper: GrammarHelper, name: str) -> None:
    with pytest.raises(BadInputError, match="is too complex: "):
        helper.prepare(request_of(COSTLY[name]), wanted)
    assert helper.prepare(request_of(USUAL["object"]), wanted).ending


def test_process_with_many_open_files(helper: GrammarHelper) -> None:
    """Check more than 1,024 open files, as in a server with many connections."""
    files = [
        os.open(os.devnull, os.O_RDONLY) for _ in range(min(1100, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200))
    ]
    try:
        assert helper.prepare(request_of({"regex": f"[a-f]{{{len(files) % 50}}}"}), wanted)
    finally:
        for file in files:
            os.close(file)


def test_slow_exact_endings_are_skipped(helper: GrammarHelper, vocabulary: Vocabulary) -> None:
    """Check slow exact endings, which would delay other requests: for 7 s in the second case."""
    for expression, exact in ((" The answer is [0-9]{1,4}\\.", True), (r"(((.*a.*\d{200})*){2})*", False)):
        request = request_of({"regex": expression})
        checked = helper.prepare(request, wanted)
        assert checked.exact is exact
        found = matcher_from_checked(request, checked, vocabulary).expression
        assert (found is not None) is exact


def test_memory_is_bounded(tiny_bundle: Path) -> None:
    little = GrammarHelper(Bundle.open(tiny_bundle), GrammarLimits(cpu_seconds=600.0, memory_bytes=64 * 2**20))
    try:
        with pytest.raises(BadInputError, match="is too complex"):
            little.prepare(request_of(COSTLY["multiples"]), wanted)
        assert little.prepare(request_of(USUAL["object"]), wanted).ending
    finally:
        little.close()


def test_grammar_too_costly_for_this_process_is_rejected(tiny_bundle: Path) -> None:
    """Check a grammar within the helper's limits whose compilation here would exceed its share."""
    helper = GrammarHelper(Bundle.open(tiny_bundle), GrammarLimits(cpu_seconds=600.0, memory_bytes=512 * 2**20))
    try:
        with pytest.raises(BadInputError, match=r"compiling it takes [\d.]+ s and \d+ MiB"):
            helper.prepare(request_of(KEPT), wanted)
    finally:
        helper.close()


def test_concurrency_is_limited(tiny_bundle: Path) -> None:
    helper = GrammarHelper(Bundle.open(tiny_bundle), GrammarLimits(cpu_seconds=600.0, memory_bytes=2**34, processes=1))
    stop = threading.Event()
    helper.start()
    with ThreadPoolExecutor(1) as threads:
        costly = threads.submit(helper.prepare, request_of(COSTLY["multiples"]), lambda: not stop.is_set())
        try:
            until(lambda: len(children(process_of(helper))) == 1)
            looks = iter([True, True, True, False])
            with pytest.raises(PreparationStoppedError):  # it waited for a slot
                helper.prepare(request_of(USUAL["object"]), lambda: next(looks))
            assert len(children(process_of(helper))) == 1
        finally:
            stop.set()
        assert isinstance(costly.exception(WAIT), PreparationStoppedError)
    helper.close()


def test_early_socket_close_is_logged(patient: GrammarHelper, caplog: pytest.LogCaptureFixture) -> None:
    """Close the socket before the process ends, as in a process that is being killed."""
    patient.start()
    first, control = process_of(patient), patient._control
    assert control is not None
    control.shutdown(socket.SHUT_RDWR)
    assert patient.prepare(request_of(USUAL["object"]), wanted).ending
    assert process_of(patient) != first
    assert [record.getMessage() for record in caplog.records] == ["grammar helper process died; starting another one"]


def test_request_is_retried_after_a_crash(patient: GrammarHelper) -> None:
    stop = threading.Event()
    patient.start()
    first = process_of(patient)
    with ThreadPoolExecutor(1) as threads:
        costly = threads.submit(patient.prepare, request_of(COSTLY["multiples"]), lambda: not stop.is_set())
        try:
            until(lambda: bool(children(first)))
            (child,) = children(first)
            os.kill(first, signal.SIGKILL)
            os.kill(child, signal.SIGKILL)
            until(lambda: patient._process is not None and patient._process.pid != first)
            until(lambda: bool(children(process_of(patient))))
            assert not costly.done()
        finally:
            stop.set()
        assert isinstance(costly.exception(WAIT), PreparationStoppedError)


def test_close_ends_running_preparations(patient: GrammarHelper) -> None:
    patient.start()
    process = process_of(patient)
    with ThreadPoolExecutor(1) as threads:
        costly = threads.submit(patient.prepare, request_of(COSTLY["multiples"]), wanted)
        until(lambda: bool(children(process)))
        (child,) = children(process)
        patient.close()
        assert isinstance(costly.exception(WAIT), PreparationStoppedError)
    until(lambda: not Path(f"/proc/{child}").exists())
    assert not Path(f"/proc/{process}").exists()
    patient.close()
    with pytest.raises(PreparationStoppedError):
        patient.prepare(request_of(USUAL["object"]), wanted)


def test_helper_ends_with_its_parent(tiny_bundle: Path) -> None:
    program = (
        "import sys, time; from lopa.runtime.grammar.helper import GrammarHelper; "
        "from lopa.runtime.grammar.grammar_limits import GrammarLimits; from lopa.runtime.bundle import Bundle; "
        "helper = GrammarHelper(Bundle.open(sys.argv[1]), GrammarLimits()); helper.start(); "
        "print(helper._process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, tiny_bundle], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        process = int(owner.stdout.readline())
        assert Path(f"/proc/{process}").exists()
        owner.kill()
    until(lambda: not Path(f"/proc/{process}").exists())


def test_missing_bundle_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    gone = GrammarHelper(replace(Bundle.open(tiny_bundle), path=tmp_path / "gone"), GrammarLimits())
    with pytest.raises(GrammarHelperError, match="did not start"):
        gone.prepare(request_of(USUAL["object"]), wanted)


@pytest.mark.parametrize("options", [{"cpu_seconds": 0}, {"memory_bytes": 1}, {"processes": 0}, {"processes": 1.5}])
def test_bad_limits_are_rejected(options: dict[str, float]) -> None:
    with pytest.raises(BadInputError, match=next(iter(options))):
        GrammarLimits(**options)  # type: ignore[arg-type]
