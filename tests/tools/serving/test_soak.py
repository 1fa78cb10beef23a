"""Short soak tests of a real server, and of deliberately broken servers, whose faults must be found."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools.run_tool import run_tool
from tools.serving.bad_requests import MAX_BODY
from tools.serving.cases import ServingCases, cases_of_bundle
from tools.serving.replies import choices_of_reply
from tools.serving.server import PROGRAM, run_server
from tools.serving.soak import SoakReport, chat_bundle, run_soak

from lopa.serve.openai.body_options import CHATS, COMPLETIONS, MESSAGES, RESPONSES

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
LOST = f"""
calls = itertools.count()
def lost(await_choices):
    async def results(*arguments):
        found = await await_choices(*arguments)
        return await asyncio.Event().wait() if next(calls) >= {DISTINCT} else found
    return results
replace(app, "await_choices", lost)
"""
"""Answers the requests that are sent alone, and loses the later ones."""
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
GOES_ON = """
from lopa.runtime.requests.handle import RequestHandle
left = []
def careless(cancel):
    def cancel_all_but_the_first(self):
        left.extend([] if self._done else [self])
        if self not in left[:1]:
            cancel(self)
    return cancel_all_but_the_first
replace(RequestHandle, "cancel", careless)
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
GROWS = """
hoard = []
def hoarding(submit_request):
    async def submission(service, *arguments):
        hoard.append((open("/dev/null"), b"x" * 8_000_000))
        return await submit_request(service, *arguments)
    return submission
replace(app, "submit_request", hoarding)
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


def test_cases_have_all_endpoints_calls_and_reasoning(cases: ServingCases) -> None:
    assert {case.path for case in cases.distinct} == {CHATS, COMPLETIONS, MESSAGES, RESPONSES}
    choices = [choice for case in cases.distinct for choice in case.alone]
    assert any(choice.calls for choice in choices)
    assert any(choice.reasoning for choice in choices)
    assert any(choice.calls and choice.reasoning for choice in choices)


def test_any_other_part_of_an_answer_is_a_difference(cases: ServingCases) -> None:
    case = next(case for case in cases.distinct if case.path == MESSAGES and case.alone[0].calls)
    choice = case.alone[0]
    blocks = [
        {"type": "thinking", "thinking": choice.reasoning},
        {"type": "text", "text": choice.text},
        *({"type": "tool_use", "name": each.name, "input": json.loads(each.arguments)} for each in choice.calls),
    ]
    result = choice.result
    lopa = {name: getattr(result, name) for name in ("stop_reason", "steps", "tokens", "seed")}
    stop = "tool_use" if choice.finish_reason == "tool_calls" else "max_tokens"
    message = {"content": blocks, "stop_reason": stop, "stop_sequence": None, "lopa": lopa}
    assert case.difference(choices_of_reply(MESSAGES, message)) is None
    for number, name, value in ((0, "thinking", "?"), (1, "text", "?"), (-1, "name", "?"), (-1, "input", {"?": 1})):
        changed = [dict(block) for block in blocks]
        changed[number][name] = value
        assert case.difference(choices_of_reply(MESSAGES, message | {"content": changed})) is not None
    for name, other in (("stop_reason", "end_turn"), ("stop_sequence", "="), ("content", blocks[:-1])):
        assert case.difference(choices_of_reply(MESSAGES, message | {name: other})) is not None


def test_a_short_soak_finds_no_faults(chats: Path, cases: ServingCases) -> None:
    report = soak(chats, cases, requests=60)
    assert report.faults == []
    assert sum(report.outcomes.values()) == 60
    assert report.outcomes["as expected"] > 25
    assert report.outcomes["rejected as expected"] > 2
    assert sum(count for outcome, count in report.outcomes.items() if outcome.startswith("leaves")) > 5
    assert report.turned_away >= 2
    assert report.answers > 50


@pytest.mark.parametrize(
    ("mix", "behaviours", "outcomes"),
    [
        ("load", {"whole", "streamed"}, {"as expected"}),
        ("hostile", {"whole", "hostile"}, {"as expected", "rejected as expected"}),
    ],
)
def test_other_mixes(mix: str, behaviours: set[str], outcomes: set[str], chats: Path, cases: ServingCases) -> None:
    report = soak(chats, cases, requests=40, mix=mix)
    assert report.faults == []
    assert (report.milliseconds.keys(), report.outcomes.keys()) == (behaviours, outcomes)
    assert sum(count for count, _, _ in report.milliseconds.values()) == 40
    assert report.tokens > 0


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


def test_growth_is_found(chats: Path, cases: ServingCases) -> None:
    faults = "\n".join(soak(chats, cases, changes=GROWS, requests=60).faults)
    for seen in ("files at the end", "memory grew"):
        assert seen in faults, faults


def test_lost_requests_are_found(chats: Path, cases: ServingCases) -> None:
    faults = soak(chats, cases, changes=LOST, requests=20, timeout=3.0).faults
    assert any("no end after" in fault for fault in faults), faults


def test_abandoned_requests_that_continue_are_found(chats: Path, cases: ServingCases) -> None:
    faults = soak(chats, cases, changes=GOES_ON, requests=10).faults
    assert any(fault.startswith("lopa_request_seconds_count") for fault in faults), faults
