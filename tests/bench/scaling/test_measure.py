"""Timed steps, medians and comparisons, and a whole report on a real core."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lopa.bench.eval_set import EvalItem, eval_set_from_jsonl
from lopa.bench.forward.work import ForwardShape
from lopa.bench.report import json_from_report, prompt_file
from lopa.bench.scaling.scaling_measurement import ROUNDS, StepParts, TimedStep, Turn, measure_turns, timed_step
from lopa.bench.scaling.scaling_report import (
    prompts_with_other_tokens,
    scale_from_decodes,
    scaling_report,
    table_from_scaling,
    typical_decodes,
)
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import CheckFailedError
from lopa.runtime.sessions.onnxruntime_graph import available_cores
from lopa.tiny import EVAL

SHAPE = ForwardShape(4, 16, 64, 9)
CORE = f"cpu:{min(available_cores())}"


def step(engine: float, shape: ForwardShape = SHAPE) -> TimedStep:
    """Return a step of 1 second plus the engine's seconds."""
    return TimedStep(shape, StepParts(0.5, engine, 0.0, 0.25, 0.0, 0.25))


def turn(*engines: float, ids: tuple[int, ...] = (1, 2)) -> Turn:
    return Turn(ids, tuple(map(step, engines)))


@pytest.fixture
def items() -> tuple[EvalItem, ...]:
    return eval_set_from_jsonl(EVAL, limit=1)


@pytest.fixture
def one(tiny_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle, [CORE]) as decoder:
        yield decoder


def test_typical_decodes_are_medians_over_the_rounds_of_a_prompt() -> None:
    turns = [turn(1.0, 10.0), turn(5.0), turn(3.0, 20.0), turn(7.0), turn(2.0, 90.0), turn(6.0)]
    assert typical_decodes(turns, 2) == [(step(2.0), step(20.0)), (step(6.0),)]
    assert typical_decodes(turns, 2, excluded=[0]) == [(step(6.0),)]


def test_prompts_that_decode_differently_are_reported() -> None:
    same = [turn(1.0), turn(2.0), turn(3.0)] * 2
    assert prompts_with_other_tokens({1: same, 2: same}, 3) == ()
    other = [*same[:4], turn(2.0, ids=(1, 3)), turn(9.0)]
    assert prompts_with_other_tokens({1: same, 2: other}, 3) == (1,)
    wider = [turn(1.0), turn(2.0), Turn((1, 2), (step(3.0, replace(SHAPE, window=17)),))] * 2
    assert prompts_with_other_tokens({1: same, 2: wider}, 3) == (2,)


def test_measured_figures_by_hand() -> None:
    """Each step takes 1 second in addition to the engine's 6, 9 and 12 seconds."""
    found = scale_from_decodes(2, [(step(6.0), step(9.0), step(12.0))], tokens=60)
    assert (found.devices, found.step, found.tokens_per_second) == (2, 10.0, 2.0)
    assert (found.parts.engine, found.parts.host) == (9.0, 0.75)


def test_a_timed_step_equals_the_step(one: Decoder, items: tuple[EvalItem, ...]) -> None:
    """The parts add up to the step's seconds."""
    steps: list[Step] = []
    for _ in one.stream(items[0].prompt, one.config(branches=4), on_step=steps.append):
        pass
    for each, found in zip(steps, map(timed_step, steps), strict=True):
        assert found.parts.seconds == pytest.approx(sum(each.seconds.values()))
        assert min(found.parts.engine, found.parts.gather, found.parts.windows, found.parts.spawn) > 0
        assert found.shape.branches == len(each.branches)
        assert found.shape.wanted == max(each.rows.sampled_per_branch)


def test_steps_of_a_plain_session_are_rejected(tiny_bundle: Path, items: tuple[EvalItem, ...]) -> None:
    steps: list[Step] = []
    with Decoder.open(tiny_bundle, ["cpu"], threads=1) as decoder:
        next(iter(decoder.stream(items[0].prompt, drafts=True, on_step=steps.append)))
    with pytest.raises(ValueError, match="without a split"):
        timed_step(steps[0])


def test_the_complete_report(one: Decoder, items: tuple[EvalItem, ...]) -> None:
    report = scaling_report(
        {1: one}, one.config(branches=3), items, prompt_file(EVAL, 1), arguments=["lopa-export", "bench"]
    )
    assert (report.other_tokens, report.decodes) == ((), len(items))
    assert [each.devices for each in report.measured] == [1]
    assert json.loads(json_from_report(report))["rounds"] == ROUNDS
    title = table_from_scaling(report).title
    assert "3 branches" in title
    assert "same tokens on all numbers of devices" in title
    assert "DIFFERENT TOKENS for prompts [1]" in table_from_scaling(replace(report, other_tokens=(1,))).title
    two, four = (scale_from_decodes(count, [(step(6.0), step(9.0), step(12.0))], 15 * count) for count in (2, 4))
    table = table_from_scaling(replace(report, measured=(replace(two, devices=1, tokens_per_second=0.5), two, four)))
    shown = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["devices"] for row in shown] == ["1", "2", "4"]
    assert [row["speed-up"] for row in shown] == ["1.00", "2.00", "4.00"]
    assert (shown[2]["step"], shown[2]["engine"], shown[2]["host"]) == ("10000.00", "9000.00", "750.00")


def test_different_tokens_on_all_prompts_fail(
    one: Decoder, items: tuple[EvalItem, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = measure_turns({1: one}, items[:1], one.config(branches=1))
    broken = {1: [replace(each, ids=(number,)) for number, each in enumerate(turns[1])]}
    monkeypatch.setattr("lopa.bench.scaling.scaling_report.measure_turns", lambda *_: broken)
    with pytest.raises(CheckFailedError, match="decodes every prompt differently"):
        scaling_report({1: one}, one.config(), items[:1], prompt_file(EVAL, 1), arguments=["x"])
