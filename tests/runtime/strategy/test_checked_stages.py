"""Stages of registered strategies that raise, or return what a decode cannot use."""

import dataclasses
import math
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import numpy as np
import pytest
from tests.plans import plan_of
from tests.runtime.strategy.agreement import plan_with, steps_of

from lopa.runtime import BadInputError, Decoder, Engine, StrategyFailedError
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.strategy import STRATEGIES, Candidates, EditView, RemaskView, Strategy, register_strategy, strategies
from lopa.runtime.strategy.checked_stages import checked_strategy
from lopa.runtime.strategy.strategy import STAGES

LOPA = STRATEGIES["lopa"]
NAN = float("nan")


@pytest.fixture(autouse=True)
def _built_in_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test with the built-in strategies only."""
    monkeypatch.setattr(strategies, "_registered", {})
    monkeypatch.setattr(strategies, "_entry_points", dict)


def mine(**stages: Any) -> Strategy:
    """Return LoPA under another name with other stages, registered."""
    strategy = dataclasses.replace(LOPA, name="mine", **stages)
    register_strategy(strategy)
    return strategy


class Boom(Exception):  # noqa: N818
    """The exception of a stage."""


def boom(*_: object) -> Any:
    raise Boom("no such luck")


def steps_with(decoder: Decoder, prompt: tuple[int, ...], strategy: Strategy, **options: Any) -> list[Any]:
    """Return the positions and tokens of each step of a decode with `strategy`."""
    plan = plan_with(strategy, {}, **{"branches": 3, "max_new_tokens": 24, **options})
    return [
        (step.unmasked.positions.tolist(), step.unmasked.tokens.tolist(), step.confidences)
        for step in steps_of(decoder, prompt, plan)
    ]


REMASKS = {"remask_threshold": 0.9, "skip_threshold": 0.3}


def run_stage(stage: str, decoder: Decoder, prompt: tuple[int, ...], strategy: Strategy) -> None:
    """Decode with `strategy` so that it comes to this stage. The toy model's tokens cannot be edited."""
    if stage == "edit":
        tokens = np.arange(3)
        half = np.full(3, 0.5, np.float32)
        edit = checked_strategy(strategy, 10).edit
        assert edit is not None
        edit(EditView(tokens, Candidates(tokens, half, half)), plan_of())
    else:
        steps_with(decoder, prompt, strategy, **(REMASKS if stage == "remask" else {}))


@pytest.mark.parametrize("stage", STAGES)
def test_an_exception_is_named_as_the_strategys(decoder: Decoder, prompt: tuple[int, ...], stage: str) -> None:
    strategy = mine(**{stage: boom})
    with pytest.raises(StrategyFailedError) as caught:
        run_stage(stage, decoder, prompt, strategy)
    assert caught.value.received == f"strategy mine: {stage} raised Boom('no such luck')"
    assert isinstance(caught.value.__cause__, Boom)


@pytest.mark.parametrize(("name", "options"), [("lopa", {}), ("lopa", REMASKS), ("credit", {}), ("klass", {})])
def test_checks_change_no_decode(decoder: Decoder, prompt: tuple[int, ...], name: str, options: dict[str, Any]) -> None:
    """A strategy of built-in stages decodes alike under another name, whose stages are checked."""
    built_in = STRATEGIES[name]
    own = dataclasses.replace(built_in, name="mine")
    register_strategy(own)
    plans = [plan_with(each, {}, branches=3, max_new_tokens=24, **options) for each in (built_in, own)]
    one, other = ([step.unmasked for step in steps_of(decoder, prompt, plan)] for plan in plans)
    assert [each.tokens.tolist() for each in one] == [each.tokens.tolist() for each in other]
    assert [each.positions.tolist() for each in one] == [each.positions.tolist() for each in other]
    assert checked_strategy(built_in, 10) is built_in
    assert checked_strategy(own, 10).cut is not own.cut


def changed(field: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a first stage that changes one field of the statistics."""

    def rescore(rows: RowStatistics, positions: Any, memory: Any, plan: Any) -> Any:
        return dataclasses.replace(rows, **{field: change(getattr(rows, field).copy())}), memory

    return rescore


def put(value: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[0, ...] = value
        return array

    return change


def size_of(view: Any) -> int:
    for field in ("positions", "probabilities", "tokens"):
        if hasattr(view, field):
            return len(getattr(view, field))
    raise AssertionError(view)


INVALID: list[tuple[str, Any, str]] = [
    ("rescore", lambda rows, *_: rows, "expected: a pair of RowStatistics and a memory"),
    ("rescore", lambda rows, *_: (rows[:1], None), "topk_ids of type integer with shape"),
    ("rescore", lambda rows, *_: (rows, 5), "returned 5\n  expected: None or a memory with a method before"),
    ("rescore", changed("entropy", put(NAN)), "returned NaN or infinity"),
    ("rescore", changed("topk_logprobs", put(NAN)), "returned NaN or infinity"),
    ("rescore", changed("topk_logprobs", put(0.5)), "topk_logprobs that ascend or exceed 0"),
    ("rescore", changed("topk_logprobs", lambda each: each[:, ::-1]), "topk_logprobs that ascend or exceed 0"),
    ("rescore", changed("topk_ids", put(-1)), "returned token ids outside the vocabulary"),
    ("rescore", changed("topk_ids", put(10**6)), "returned token ids outside the vocabulary"),
    ("rescore", changed("topk_ids", lambda each: each.astype(float)), "topk_ids of type integer"),
    ("branch_confidence", lambda *_: NAN, "returned nan\n  expected: a finite number"),
    ("branch_confidence", lambda *_: -math.inf, "returned -inf\n  expected: a finite number"),
    ("branch_confidence", lambda *_: None, "returned None\n  expected: a finite number"),
    ("branch_confidence", lambda view, _: view.candidates.confidences[:1], "expected: a finite number"),
    ("eligible", lambda block, _: np.ones(size_of(block) + 1, bool), "expected: an array of type bool with shape"),
    ("eligible", lambda block, _: np.ones(size_of(block), int), "expected: an array of type bool with shape"),
    ("eligible", lambda *_: True, "returned True\n  expected: an array of type bool with shape"),
    ("threshold", lambda block, _: np.full(size_of(block), NAN), "returned NaN"),
    ("threshold", lambda *_: 0.9, "returned 0.9\n  expected: an array of type numeric"),
    ("rank", lambda block, _: np.full(size_of(block), NAN), "returned NaN"),
    ("rank", lambda block, _: np.zeros((size_of(block), 1)), "expected: an array of type numeric"),
    ("rank", lambda block, _: ["a"] * size_of(block), "expected: an array of type numeric"),
    ("cut", lambda *_: -1, "returned -1\n  expected: a whole number of at least 0"),
    ("cut", lambda *_: 1.0, "returned 1.0\n  expected: a whole number"),
    ("minimum", lambda *_: -1, "returned -1\n  expected: a whole number"),
    ("minimum", lambda *_: None, "returned None\n  expected: a whole number"),
    ("edit", lambda view, _: np.ones(size_of(view), int), "expected: an array of type bool"),
    ("remask", lambda view, _: np.ones(size_of(view) + 1, bool), "expected: an array of type bool"),
    ("lookaheads", lambda view, *_: np.array([size_of(view)]), "different indices from 0 to"),
    ("lookaheads", lambda *_: np.array([-1]), "at most 2 different indices from 0 to"),
    ("lookaheads", lambda *_: [0, 0], r"returned \[0, 0\]\n  expected: at most 2 different indices"),
    ("lookaheads", lambda view, *_: np.arange(size_of(view)), "at most 2 different indices from 0 to"),
    ("lookaheads", lambda view, *_: view.candidates.confidences > 0, "expected: an array of type integer"),
    ("lookaheads", lambda view, *_: view.candidates.confidences, "expected: an array of type integer"),
    ("lookaheads", lambda *_: 0, "returned 0\n  expected: an array of type integer of one dimension"),
    ("lookaheads", lambda *_: None, "returned None\n  expected: an array of type integer"),
]


@pytest.mark.parametrize(("stage", "function", "message"), INVALID)
def test_an_invalid_result_is_named(
    decoder: Decoder, prompt: tuple[int, ...], stage: str, function: Callable[..., Any], message: str
) -> None:
    strategy = mine(**{stage: function})
    with pytest.raises(StrategyFailedError, match=message) as caught:
        run_stage(stage, decoder, prompt, strategy)
    assert caught.value.received.startswith(f"strategy mine: {stage} returned ")


def test_more_remasked_positions_than_the_limit() -> None:
    every = checked_strategy(mine(remask=lambda view, _: np.ones(size_of(view), np.bool_)), 10).remask
    assert every is not None
    half = np.full(3, 0.5)
    assert every(RemaskView(half, accepted=5, before=5, limit=3), plan_of()).all()
    with pytest.raises(StrategyFailedError, match="remask returned 3 positions\n  expected: at most 2, the rest of"):
        every(RemaskView(half, accepted=5, before=5, limit=2), plan_of())


def test_lists_and_empty_lists_are_indices(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    none = steps_with(decoder, prompt, mine(lookaheads=lambda *_: []))
    assert all(len(confidences) == 1 for *_, confidences in none)
    strategies._registered.clear()
    some = steps_with(decoder, prompt, mine(lookaheads=lambda view, *_: [size_of(view) - 1]))
    assert max(len(confidences) for *_, confidences in some) == 2


@dataclasses.dataclass(frozen=True)
class Broken:
    """A memory that cannot be cut off."""

    def before(self, end: int) -> Self:
        raise Boom(end)


def test_a_memory_that_raises_is_named(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    """A memory is cut off behind an end of text, which this first stage proposes at once."""
    end = decoder.bundle.manifest.special_tokens.ends[0]

    def rescore(rows: RowStatistics, *_: object) -> Any:
        ids, logprobs = rows.topk_ids.copy(), rows.topk_logprobs.copy()
        ids[:, 0], logprobs[:, 0] = end, 0.0
        return dataclasses.replace(rows, topk_ids=ids, topk_logprobs=logprobs), Broken()

    with pytest.raises(StrategyFailedError, match="strategy mine: before of its memory raised Boom"):
        steps_with(decoder, prompt, mine(rescore=rescore))


def test_a_failing_strategy_ends_only_its_request(decoder: Decoder) -> None:
    mine(branch_confidence=boom)
    expected = decoder.generate("1", max_new_tokens=16)
    with Engine(decoder, max_num_seqs=3) as engine:
        handles = [
            engine.submit("1", GenerationConfig(max_new_tokens=16, strategy=each)) for each in ("lopa", "mine", "lopa")
        ]
        assert [handles[i].result().token_ids for i in (0, 2)] == [expected.token_ids] * 2
        with pytest.raises(StrategyFailedError, match="strategy mine: branch_confidence raised Boom"):
            handles[1].result()


def test_a_signal_handlers_exception_stays_the_callers(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise Boom("late")

    def confidence(*_: object) -> float:
        signal.raise_signal(signal.SIGALRM)
        return 0.0

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        with pytest.raises(Boom, match="late"):
            steps_with(decoder, prompt, mine(branch_confidence=confidence))
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (boom, StrategyFailedError, "strategy mine: confidence raised Boom"),
        (lambda _: "entropy", BadInputError, "invalid confidence of strategy mine 'entropy'"),
    ],
)
def test_its_confidence_measure_is_checked(
    decoder: Decoder, function: Callable[..., Any], error: type[Exception], message: str
) -> None:
    mine(confidence=function)
    with pytest.raises(error, match=message):
        decoder.generate("1", strategy="mine", max_new_tokens=4)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_is_no_function_is_rejected(stage: str) -> None:
    with pytest.raises(BadInputError, match=f"strategy mine: {stage} is 0.5\n  expected: a function"):
        mine(**{stage: 0.5})
    if stage not in ("edit", "remask"):
        with pytest.raises(BadInputError, match=f"strategy mine: {stage} is None"):
            mine(**{stage: None})


@pytest.mark.parametrize("options", [[], (5,), None])
def test_options_of_a_wrong_type_are_rejected(options: Any) -> None:
    with pytest.raises(BadInputError, match="strategy mine: options are"):
        mine(options=options)
