"""Recording of steps, medians, comparisons and timed forwards, and a whole report on real cores."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lopa.bench.eval_set import EvalItem, eval_set_from_jsonl
from lopa.bench.forward.work import ForwardShape
from lopa.bench.report import json_from_report, prompt_file
from lopa.bench.scaling.links import PUBLISHED_LINKS, SHARED_MEMORY, DeviceLink
from lopa.bench.scaling.scaling_measurement import ROUNDS, Turn, measure_shares, measure_turns, recorded_step
from lopa.bench.scaling.scaling_model import Decode, MessageSizes, ReplayStep, ScalingModel, ShareCost, StepParts
from lopa.bench.scaling.scaling_report import (
    most_common_full_shape,
    project_scales,
    prompts_with_other_tokens,
    scale_from_decodes,
    scaling_report,
    typical_decodes,
)
from lopa.bench.scaling.scaling_table import tables_from_scaling
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.errors import CheckFailedError
from lopa.runtime.sessions.onnxruntime_graph import available_cores
from lopa.tiny import EVAL

SHAPE = ForwardShape(4, 16, 64, 9)
LINK = DeviceLink(SHARED_MEMORY, 0.0, float("inf"), "made up")
CORE = f"cpu:{min(available_cores())}"


def step(engine: float, shape: ForwardShape = SHAPE) -> ReplayStep:
    """Return a step of 1 second plus the engine's seconds."""
    return ReplayStep(shape, 0, False, StepParts(0.5, engine, 0.0, 0.25, 0.0, 0.25))


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


def test_the_most_common_shape_among_steps_with_the_most_branches() -> None:
    few, wide = replace(SHAPE, branches=2), replace(SHAPE, window=20)
    decodes = [(step(1, few), step(1, few), step(1, few), step(1, wide)), (step(1), step(1))]
    assert most_common_full_shape(decodes) == SHAPE


def test_measured_figures_by_hand() -> None:
    """Each step takes 1 second in addition to the engine's 6, 9 and 12 seconds."""
    decodes: list[Decode] = [(step(6.0), step(9.0), step(12.0))]
    found = scale_from_decodes(2, decodes, 7.0, tokens=60)
    assert (found.devices, found.step, found.tokens_per_second, found.predicted) == (2, 10.0, 2.0, 7.0)
    assert (found.parts.engine, found.parts.host) == (9.0, 0.75)


def test_only_shared_memory_slows_projections_down() -> None:
    """The engine takes 2 seconds for each of 4 branches. Two devices of this machine take 1.5 times as long."""
    away = DeviceLink("away", 0.0, float("inf"), "made up")
    shares = ((1, 4, None), (2, 2, 6.0), (4, 1, None))
    model = ScalingModel(
        MessageSizes(cache_row=1, answer_row=1),
        tuple(ShareCost(devices, share, 16, 64, 9, 2.0 * share, together) for devices, share, together in shares),
    )
    found = project_scales([(step(8.0),)], [1, 2, 4], [LINK, away], model, tokens=36)
    assert [(each.link, each.devices, each.step) for each in found] == [
        *((SHARED_MEMORY, 1, 9.0), (SHARED_MEMORY, 2, 7.0), (SHARED_MEMORY, 4, 4.0)),
        *(("away", 1, 9.0), ("away", 2, 5.0), ("away", 4, 3.0)),
    ]
    assert [each.tokens_per_second for each in found] == pytest.approx([4, 36 / 7, 9, 4, 7.2, 12])


def test_a_recorded_step_equals_the_step(one: Decoder, items: tuple[EvalItem, ...]) -> None:
    """The parts add up to the step's seconds, and committed rows are shared only with causal windows."""
    for window in ("full", "block_causal"):
        steps: list[Step] = []
        for _ in one.stream(items[0].prompt, one.config(branches=4, window=window), on_step=steps.append):
            pass
        recorded = [recorded_step(each) for each in steps]
        for each, found in zip(steps, recorded, strict=True):
            assert found.parts.seconds == pytest.approx(sum(each.seconds.values()))
            assert min(found.parts.engine, found.parts.gather, found.parts.windows, found.parts.spawn) > 0
            assert found.shape.branches == len(each.branches)
            assert found.shape.wanted == each.windows.logits_index.shape[1]
            assert found.committed == each.windows.commit
        several = [found for found in recorded if found.committed and found.shape.branches > 1]
        assert several
        assert all(found.shared == (window == "block_causal") for found in several)


def test_steps_of_a_plain_session_are_rejected(tiny_bundle: Path, items: tuple[EvalItem, ...]) -> None:
    steps: list[Step] = []
    with Decoder.open(tiny_bundle, ["cpu"], threads=1) as decoder:
        next(iter(decoder.stream(items[0].prompt, drafts=True, on_step=steps.append)))
    with pytest.raises(ValueError, match="without a split"):
        recorded_step(steps[0])


def test_shares_alone_and_together(tiny_bundle: Path, one: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run both devices on one core, since only the numbers of branches matter here."""
    monkeypatch.setattr("lopa.bench.scaling.scaling_measurement.SHARE_ROUNDS", 2)
    from lopa.runtime.bundle import Bundle
    from lopa.runtime.parallel.branch_session import BranchParallelSession
    from lopa.runtime.sessions.session import open_session

    bundle = Bundle.open(tiny_bundle)
    pair = BranchParallelSession([open_session(bundle, "cpu", threads=1) for _ in range(2)])
    seen: list[list[int]] = []
    original = pair.forward

    def recording_forward(batch):  # type: ignore[no-untyped-def]
        answer = original(batch)
        assert answer.split is not None
        seen.append([device.branches for device in answer.split.devices])
        return answer

    monkeypatch.setattr(pair, "forward", recording_forward)
    with Decoder(bundle, pair, one.tokenizer) as two:
        shares = measure_shares({1: one, 2: two}, [1, 2, 4], replace(SHAPE, branches=5))
    assert [(share.devices, share.branches) for share in shares] == [(1, 5), (2, 3), (4, 2), (5, 1)]
    assert [share.together is None for share in shares] == [True, False, True, True]
    assert seen == [[3, 3]] * 2
    assert all(share.alone > 0 for share in shares)


def test_the_complete_report(one: Decoder, items: tuple[EvalItem, ...]) -> None:
    report = scaling_report(
        {1: one}, one.config(branches=3), items, prompt_file(EVAL, 1), counts=[2, 5], arguments=["lopa-export", "bench"]
    )
    assert (report.other_tokens, report.not_measured) == ((), (2, 5))
    assert [each.devices for each in report.measured] == [1]
    assert [each.devices for each in report.shares] == [1, 2, 3, 5]
    assert [link.name for link in report.links] == ["shared memory", *(link.name for link in PUBLISHED_LINKS)]
    assert len(report.projected) == 4 * 3
    alone = [each for each in report.projected if each.devices == 1]
    assert len({each.tokens_per_second for each in alone}) == 1, "one device needs no link"
    assert report.measured[0].predicted == pytest.approx(report.measured[0].step), "one device is replayed as it was"
    assert json.loads(json_from_report(report))["rounds"] == ROUNDS
    tables = tables_from_scaling(report)
    assert "2, 5 devices exceed the cores here" in tables[0].title
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_different_tokens_on_all_prompts_fail(
    one: Decoder, items: tuple[EvalItem, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = measure_turns({1: one}, items[:1], one.config(branches=1))
    broken = {1: [replace(each, ids=(number,)) for number, each in enumerate(turns[1])]}
    monkeypatch.setattr("lopa.bench.scaling.scaling_report.measure_turns", lambda *_: broken)
    with pytest.raises(CheckFailedError, match="decodes every prompt differently"):
        scaling_report({1: one}, one.config(), items[:1], prompt_file(EVAL, 1), counts=[1], arguments=["x"])
