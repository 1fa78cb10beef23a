"""Short soak tests of a real server, and of deliberately broken servers, whose faults must be found."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools.run_tool import run_tool
from tools.serving.bad_requests import MAX_BODY
from tools.serving.cases import ServingCases, cases_of_bundle
from tools.serving.server import PROGRAM, run_server
from tools.serving.soak import SoakReport, chat_bundle, run_soak

MAX_NUM_SEQS, QUEUE = 4, 6
BROKEN = """
import asyncio, itertools, sys
import lopa.serve.answering.stream as stream
import lopa.serve.app as app
from lopa.cli.main import main
from lopa.serve.metrics import ServeMetrics

number = itertools.count(1)

def is_nth_call(count):
    return next(number) % count == 0

def replace(owner, name, make):
    setattr(owner, name, make(getattr(owner, name)))
"""
MIXED_UP = """
kept = []
def mixed(await_results):
    async def results(handles, receive):
        found = await await_results(handles, receive)
        kept.extend([found] if found else [])
        return next(each for each in kept if len(each) == len(found)) if found and is_nth_call(2) else found
    return results
replace(app, "await_results", mixed)
"""
MIXED_UP_IN_STREAMS = """
texts = []
def mixed(of_event):
    def part(self, index, event):
        if isinstance(event, stream.TextEvent):
            texts.append(event)
            event = texts[len(texts) // 2]
        return of_event(self, index, event)
    return part
replace(stream._Parts, "of_event", mixed)
"""
LOST = """
calls = itertools.count()
def lost(await_results):
    async def results(handles, receive):
        found = await await_results(handles, receive)
        return await asyncio.Event().wait() if next(calls) == 13 else found
    return results
replace(app, "await_results", lost)
"""
CUT_OFF = """
def cut(stream_from_reply):
    async def streamed(*arguments):
        async for event in stream_from_reply(*arguments):
            if event.endswith(stream.DONE) and is_nth_call(3):
                return
            yield event
    return streamed
replace(app, "stream_from_reply", cut)
"""
GOES_ON = """
class Careless(app.EventResponse):
    "Does not end the third stream, which its client leaves, being one of those that take is_nth_call place."
    def __init__(self, *arguments, on_end, **options):
        super().__init__(*arguments, on_end=(lambda: None) if next(number) == 3 else on_end, **options)
app.EventResponse = Careless
"""
LOSES_A_PLACE = """
def losing(handles_for_request):
    async def handles(service, *arguments):
        service.engine._queue_limit -= is_nth_call(8)
        return await handles_for_request(service, *arguments)
    return handles
replace(app, "handles_for_request", losing)
"""
MISCOUNTS = """
def twice(rejected):
    def count(self, reason):
        rejected(self, reason)
        rejected(self, reason)
    return count
replace(ServeMetrics, "rejected", twice)
"""
GROWS = """
hoard = []
def hoarding(handles_for_request):
    async def handles(service, *arguments):
        hoard.append((open("/dev/null"), b"x" * 4_000_000))
        return await handles_for_request(service, *arguments)
    return handles
replace(app, "handles_for_request", hoarding)
"""


@pytest.fixture(scope="module")
def chats(tiny_bundle: Path) -> Iterator[Path]:
    with chat_bundle(tiny_bundle) as bundle:
        yield bundle


@pytest.fixture(scope="module")
def cases(chats: Path) -> ServingCases:
    return cases_of_bundle(chats, 10, seed=1)


def soak(chats: Path, cases: ServingCases, *, requests: int, changes: str = "", timeout: float = 60.0) -> SoakReport:
    """Run a soak test of the server, optionally with `changes`."""
    options = ("--max-num-seqs", MAX_NUM_SEQS, "--queue", QUEUE, "--max-body", MAX_BODY)
    program = ("-c", f"{BROKEN}{changes}\nmain(sys.argv[1:])") if changes else PROGRAM
    with run_server(chats, options, program=program) as server:
        return asyncio.run(
            run_soak(
                server, cases, requests=requests, clients=16, capacity=MAX_NUM_SEQS + QUEUE, seed=3, timeout=timeout
            )
        )


def test_a_short_soak_finds_no_faults(chats: Path, cases: ServingCases) -> None:
    report = soak(chats, cases, requests=60)
    assert report.faults == []
    assert sum(report.outcomes.values()) == 60
    assert report.outcomes["as expected"] > 25
    assert report.outcomes["rejected as expected"] > 2
    assert sum(count for outcome, count in report.outcomes.items() if outcome.startswith("leaves")) > 5
    assert report.turned_away >= 2
    assert report.answers > 50


def test_failing_devices_change_no_answer(tiny_bundle: Path) -> None:
    done = run_tool("measure", "soak", tiny_bundle, "--requests", 60, "--distinct", 10, "--failing", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["devices_lost"], report["faults"]) == (2, [])
    assert report["outcomes"]["as expected"] > 25


def test_faults_of_a_broken_server_are_found(chats: Path, cases: ServingCases) -> None:
    changes = MIXED_UP + MIXED_UP_IN_STREAMS + LOST + CUT_OFF + LOSES_A_PLACE + MISCOUNTS + GROWS
    faults = "\n".join(soak(chats, cases, changes=changes, requests=30, timeout=2.0).faults)
    for seen in (
        "alone: WrongAnswerError(",
        "streamed: ('",
        "no end after",
        "incomplete stream",
        f"a capacity of {MAX_NUM_SEQS + QUEUE} got 429",
        'rejected_total{reason="bad_request"}',
        "files at the end",
        "memory grew",
    ):
        assert seen in faults, faults


def test_abandoned_requests_that_continue_are_found(chats: Path, cases: ServingCases) -> None:
    faults = soak(chats, cases, changes=GOES_ON, requests=10).faults
    assert any(fault.startswith("lopa_request_seconds_count") for fault in faults), faults
