"""Timed steps, medians and comparisons, and a whole report on a real core."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lopa.bench.eval_set import EvalItem, eval_set_from_jsonl
from lopa.bench.forward.work import ForwardShape
from lopa.bench.report import Run, json_from_report, prompt_file, run_now
from lopa.bench.scaling import ROUNDS, Parts, Turn, measure_turns, parts_of_step, scaling_report, table_from_scaling
from lopa.bench.turns import result_with_steps
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import CheckFailedError
from lopa.runtime.sessions.onnxruntime_graph import available_cores
from lopa.tiny import EVAL

SHAPE = ForwardShape(4, 16, 64, 9)
FILE = prompt_file(EVAL, 1)


def step(engine: float) -> Parts:
    """Return a step of 1 second plus the engine's seconds."""
    return {"engine": engine, "gather": 0.0, "select": 0.25, "commit": 0.0, "host": 0.75}


def turn(*engines: float, ids: tuple[int, ...] = (1, 2)) -> Turn:
    return Turn(ids, (SHAPE,) * len(engines), tuple(map(step, engines)))


@pytest.fixture
def items() -> tuple[EvalItem, ...]:
    return eval_set_from_jsonl(EVAL, limit=1)


@pytest.fixture
def one(tiny_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle, [f"cpu:{min(available_cores())}"]) as decoder:
        yield decoder


@pytest.fixture
def run(one: Decoder) -> Run:
    return run_now(one.bundle, device="cpu", threads=1, arguments=["lopa-export", "bench"])


def test_figures_are_medians_over_rounds_by_hand(run: Run) -> None:
    """Two prompts, of two steps and of one. Each step takes 1 second in addition to the engine's."""
    turns = [turn(1.0, 10.0), turn(5.0, ids=(3,)), turn(3.0, 20.0), turn(7.0, ids=(3,)), turn(2.0, 90.0)]
    turns.append(turn(6.0, ids=(3,)))
    report = scaling_report({1: turns, 2: turns}, run, FILE, {"branches": 3})
    assert (report.decodes, report.steps, report.other_tokens) == (2, 3, ())
    one, two = report.measured
    assert (one.devices, two.devices) == (1, 2)
    assert one.tokens_per_second == 3 / ((3.0 + 20.0 + 2) + (6.0 + 1))
    assert (one.step, one.parts["engine"], one.parts["host"]) == (7.0, 6.0, 0.75)


def test_prompts_that_decode_differently_are_excluded(run: Run) -> None:
    same = [turn(1.0), turn(2.0), turn(3.0)] * ROUNDS
    other = [*same[:4], turn(2.0, ids=(1, 3)), *same[5:]]
    report = scaling_report({1: same, 2: other}, run, FILE, {"branches": 3})
    assert (report.other_tokens, report.decodes) == ((1,), 2)
    assert "DIFFERENT TOKENS for prompts [1]" in table_from_scaling(report).title
    wider = [*same[:2], replace(same[2], shapes=(replace(SHAPE, window=17),)), *same[3:]]
    assert scaling_report({1: same, 2: wider}, run, FILE, {}).other_tokens == (2,)
    with pytest.raises(CheckFailedError, match="decodes every prompt differently"):
        scaling_report({1: [turn(1.0)] * ROUNDS, 2: [turn(1.0, ids=(9,))] * ROUNDS}, run, FILE, {})


def test_the_complete_report(one: Decoder, run: Run, items: tuple[EvalItem, ...]) -> None:
    config = one.config(branches=3, max_new_tokens=16)
    turns = measure_turns({1: one}, items, config)
    report = scaling_report(turns, run, FILE, one.resolve(config).options)
    assert (report.other_tokens, report.decodes) == ((), len(items))
    assert json.loads(json_from_report(report))["rounds"] == ROUNDS
    half = replace(report.measured[0], devices=2, tokens_per_second=report.measured[0].tokens_per_second * 2, step=10.0)
    table = table_from_scaling(replace(report, measured=(report.measured[0], half)))
    assert "3 branches" in table.title
    assert "same tokens on all numbers of devices" in table.title
    first, second = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (first["speed-up"], second["speed-up"], second["devices"], second["step"]) == (
        "1.00",
        "2.00",
        "2",
        "10000.00",
    )
    assert {"engine", "gather", "select", "commit", "host"} < first.keys()


def test_the_parts_of_a_step_add_up(one: Decoder, items: tuple[EvalItem, ...]) -> None:
    _, steps = result_with_steps(one, items[0].prompt, one.config(branches=4))
    for each, found in zip(steps, map(parts_of_step, steps), strict=True):
        assert sum(found.values()) == pytest.approx(sum(each.seconds.values()))
        assert min(found["engine"], found["gather"], found["host"]) > 0
