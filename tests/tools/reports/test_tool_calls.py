"""Statistics of random calls: what counts as a fault."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tools.reports.tool_calls import CallStatistics, call_statistics, decoders

from lopa.serve.chat.call_parser import ToolCall
from lopa.serve.openai.body_options import CHATS
from lopa.serve.openai.request import AnswerRequest, request_from_body
from lopa.serve.protocols.choice import Choice
from lopa.serve.serve_limits import ServeLimits

pytest.importorskip("llguidance")


def requested() -> AnswerRequest:
    parameters = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body = {"model": "", "messages": [{"role": "user", "content": "1"}], "tools": [tool]}
    return request_from_body(body, CHATS, ServeLimits())


def counted(*parts: Any, stop_reason: str = "eos") -> CallStatistics:
    statistics = CallStatistics()
    result: Any = SimpleNamespace(stop_reason=stop_reason, tokens=3, seconds=0.1, text="")
    statistics.add("form", requested(), Choice(result, parts, 0))
    return statistics


def test_valid_calls_count() -> None:
    statistics = counted(ToolCall("f", '{"n": 1}'), ToolCall("f", '{"n": 2}'))
    assert (statistics.invalid, statistics.valid["form"], statistics.calls) == ([], 1, 2)


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("text",),
        (ToolCall("f", '{"n": "1"}'),),
        (ToolCall("f", '{"n": 1, "m": 1}'),),
        (ToolCall("g", '{"n": 1}'),),
        ("text", ToolCall("f", '{"n": 1}')),
    ],
)
def test_other_answers_are_faults_unless_they_were_cut(parts: tuple[Any, ...]) -> None:
    assert len(counted(*parts).invalid) == 1
    assert counted(*parts, stop_reason="length").invalid == []


def test_random_calls_of_the_embedded_model_are_valid(tiny_bundle: Path) -> None:
    with decoders(tiny_bundle) as opened:
        statistics = call_statistics(opened, 6, seed=3)
    assert statistics.invalid == []
    assert statistics.ends.total() == 6
    assert statistics.calls >= statistics.valid.total() > 0
