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

pytestmark = pytest.mark.slow

MAX_NUM_SEQS, QUEUE = 4, 6
DISTINCT = 16
BROKEN = """
import asyncio, itertools, sys
import lopa.serve.app as app
import lopa.serve.chat.answer_parser as answer_parser
from lopa.serve.protocols.reply_format import DONE
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
def mixed(await_choices):
    async def results(*arguments):
        found = await await_choices(*arguments)
        kept.extend([found] if found else [])
        return next(each for each in kept if len(each) == len(found)) if found and is_nth_call(2) else found
    return results
replace(app, "await_choices", mixed)
"""
MIXED_UP_IN_STREAMS = """
texts = []
def mixed(feed):
    def parts(self, event):
        texts.append(event)
        return feed(self, texts[len(texts) // 2])
    return parts
replace(answer_parser.AnswerParser, "feed", mixed)
"""
CUT_OFF = """
def cut(stream_from_reply):
    async def streamed(*arguments):
        async for event in stream_from_reply(*arguments):
            if event.endswith(DONE) and is_nth_call(3):
                return
            yield event
    return streamed
replace(app, "stream_from_reply", cut)
"""
LOSES_A_PLACE = """
def losing(submit_request):
    async def submission(service, *arguments):
        service.engine._queue_limit -= is_nth_call(8)
        return await submit_request(service, *arguments)
    return submission
replace(app, "submit_request", losing)
"""
MISCOUNTS = """
def twice(rejected):
    def count(self, reason):
        rejected(self, reason)
        rejected(self, reason)
    return count
replace(ServeMetrics, "rejected", twice)
"""


@pytest.fixture(scope="module")
def chats(tiny_bundle: Path) -> Iterator[Path]:
    with chat_bundle(tiny_bundle) as bundle:
        yield bundle


@pytest.fixture(scope="module")
def cases(chats: Path) -> ServingCases:
    return cases_of_bundle(chats, DISTINCT, seed=1)


def soak(
    chats: Path, cases: ServingCases, *, requests: int, changes: str = "", timeout: float = 60.0, mix: str = "soak"
) -> SoakReport:
    """Run a soak test of the server, optionally with `changes`."""
    options = ("--max-num-seqs", MAX_NUM_SEQS, "--queue", QUEUE, "--max-body", MAX_BODY)
    program = ("-c", f"{BROKEN}{changes}\nmain(sys.argv[1:])") if changes else PROGRAM
    with run_server(chats, options, program=program) as server:
        counts = {"requests": requests, "clients": 16, "capacity": MAX_NUM_SEQS + QUEUE}
        return asyncio.run(run_soak(server, cases, **counts, seed=3, timeout=timeout, mix=mix))


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
    changes = MIXED_UP + MIXED_UP_IN_STREAMS + CUT_OFF + LOSES_A_PLACE + MISCOUNTS
    faults = "\n".join(soak(chats, cases, changes=changes, requests=30, timeout=2.0).faults)
    for seen in (
        "alone: WrongAnswerError(",
        "streamed: (",
        "incomplete stream",
        f"a capacity of {MAX_NUM_SEQS + QUEUE} got 429",
        'rejected_total{reason="bad_request"}',
    ):
        assert seen in faults, faults
