"""Stages of registered strategies that raise, or return what a decode cannot use."""

import dataclasses
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import numpy as np
import pytest
from tests.params import params_of
from tests.runtime.strategy.agreement import params_with, steps_of

from lopa.runtime import BadInputError, Decoder, StrategyFailedError
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.strategy import STRATEGIES, Candidates, EditView, RemaskView, Strategy, installed, register_strategy
from lopa.runtime.strategy.installed import checked_strategy
from lopa.runtime.strategy.strategies import no_threshold
from lopa.runtime.strategy.strategy import STAGES

LOPA = STRATEGIES["lopa"]
NAN = float("nan")


@pytest.fixture(autouse=True)
def _built_in_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test with the built-in strategies only."""
    monkeypatch.setattr(installed, "_registered", {})
    monkeypatch.setattr(installed, "_entry_points", dict)


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
    params = params_with(strategy, {}, **{"branches": 3, "max_new_tokens": 24, **options})
    return [
        (step.unmasked.positions.tolist(), step.unmasked.tokens.tolist(), step.confidences)
        for step in steps_of(decoder, prompt, params)
    ]


REMASKS = {"remask_threshold": 0.9, "skip_threshold": 0.3}


def run_stage(stage: str, decoder: Decoder, prompt: tuple[int, ...], strategy: Strategy) -> None:
    """Decode with `strategy` so that it comes to this stage. The toy model's tokens cannot be edited."""
    if stage == "edit":
        tokens = np.arange(3)
        half = np.full(3, 0.5, np.float32)
        edit = checked_strategy(strategy, 10).edit
        assert edit is not None
        edit(EditView(tokens, Candidates(tokens, half, half)), params_of())
    else:
        steps_with(decoder, prompt, strategy, **(REMASKS if stage == "remask" else {}))


@pytest.mark.parametrize("stage", STAGES)
def test_an_exception_is_named_as_the_strategys(decoder: Decoder, prompt: tuple[int, ...], stage: str) -> None:
    strategy = mine(**{stage: boom})
    with pytest.raises(StrategyFailedError) as caught:
        run_stage(stage, decoder, prompt, strategy)
    assert caught.value.received == f"strategy mine: {stage} raised Boom('no such luck')"
    assert isinstance(caught.value.__cause__, Boom)


WRITES: list[tuple[str, Callable[..., Any]]] = [
    ("rescore", lambda rows, *_: rows.entropy),
    ("branch_confidence", lambda branch, _: branch.candidates.tokens),
    ("eligible", lambda block, _: block.masked),
    ("threshold", lambda block, _: block.candidates.probabilities),
    ("rank", lambda block, _: block.round.candidates[-1].confidences),
    ("cut", lambda ranked, *_: ranked),
    ("minimum", lambda block, _: block.positions),
    ("edit", lambda view, _: view.tokens),
    ("remask", lambda view, _: view.probabilities),
    ("lookaheads", lambda branch, *_: branch.candidates.entropies),
]


@pytest.mark.parametrize(("stage", "array"), WRITES)
def test_a_stage_cannot_write_to_its_arguments(
    decoder: Decoder, prompt: tuple[int, ...], stage: str, array: Callable[..., Any]
) -> None:
    def write(*arguments: Any) -> Any:
        array(*arguments)[:] = 0

    strategy = mine(**{stage: write}, **({"threshold": no_threshold} if stage == "cut" else {}))
    with pytest.raises(StrategyFailedError, match=f"strategy mine: {stage} raised ValueError.*read-only"):
        run_stage(stage, decoder, prompt, strategy)


@pytest.mark.parametrize(("name", "options"), [("lopa", {}), ("lopa", REMASKS), ("credit", {}), ("klass", {})])
def test_checks_change_no_decode(decoder: Decoder, prompt: tuple[int, ...], name: str, options: dict[str, Any]) -> None:
    """A strategy of built-in stages decodes alike under another name, whose stages are checked."""
    built_in = STRATEGIES[name]
    own = dataclasses.replace(built_in, name="mine")
    register_strategy(own)
    params = [params_with(each, {}, branches=3, max_new_tokens=24, **options) for each in (built_in, own)]
    one, other = ([step.unmasked for step in steps_of(decoder, prompt, params)] for params in params)
    assert [each.tokens.tolist() for each in one] == [each.tokens.tolist() for each in other]
    assert [each.positions.tolist() for each in one] == [each.positions.tolist() for each in other]
    assert checked_strategy(built_in, 10) is built_in
    assert checked_strategy(own, 10).cut is not own.cut


def changed(field: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a first stage that changes one field of the statistics."""

    def rescore(rows: RowStatistics, positions: Any, memory: Any, params: Any) -> Any:
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


class Raising(float):
    """An object whose methods raise."""

    def __getattribute__(self, name: str) -> Any:
        raise Boom(name)

    def __len__(self) -> int:
        raise Boom("length")

    def __repr__(self) -> str:
        raise Boom("repr")

    __ge__ = __float__ = __iter__ = __array__ = boom


class Count(int):
    """A number that does not compare with others."""

    __lt__ = __gt__ = boom


INVALID: list[tuple[str, Any, str]] = [
    ("rescore", lambda rows, *_: rows, "RowStatistics"),
    ("rescore", lambda rows, *_: (rows[:1], None), "topk_ids array"),
    ("rescore", lambda rows, *_: (rows, 5), "the memory 5"),
    ("rescore", changed("entropy", put(NAN)), "NaN or infinity"),
    ("rescore", changed("topk_logprobs", put(0.5)), "log-probabilities that ascend or exceed 0"),
    ("rescore", changed("topk_ids", put(-1)), "token ids outside the vocabulary"),
    ("rescore", changed("topk_ids", lambda each: each.astype(float)), "topk_ids array"),
    ("branch_confidence", lambda *_: NAN, "nan"),
    ("branch_confidence", lambda view, _: view.candidates.confidences[:1], "array"),
    ("eligible", lambda block, _: np.ones(size_of(block) + 1, bool), "array"),
    ("eligible", lambda block, _: np.ones(size_of(block), int), "array of shape \\(\\d+,\\) and type int64: array"),
    ("eligible", lambda *_: [1], "\\[1\\]"),
    ("rank", lambda *_: np.array([1.0]), "array of shape \\(1,\\) and type float64: array\\(\\[1"),
    ("threshold", lambda block, _: np.full(size_of(block), NAN), "array"),
    ("threshold", lambda *_: 0.9, "0.9"),
    ("rank", lambda block, _: ["a"] * size_of(block), "\\['a'"),
    ("cut", lambda *_: -1, "-1"),
    ("minimum", lambda *_: None, "None"),
    ("edit", lambda view, _: np.ones(size_of(view), int), "array"),
    ("remask", lambda view, _: np.ones(size_of(view) + 1, bool), "array"),
    ("lookaheads", lambda view, *_: np.array([size_of(view)]), "array"),
    ("lookaheads", lambda *_: np.array([0, 0]), "array"),
    ("lookaheads", lambda view, *_: np.arange(min(3, size_of(view))), "array"),
    ("lookaheads", lambda view, *_: view.candidates.confidences[:2], "array"),
    # results whose check or later use would raise
    ("rescore", lambda *_: (Raising(), None), "a value of type tuple"),
    ("rescore", changed("entropy", np.ma.masked_array), "entropy MaskedArray of shape"),
    ("rescore", lambda rows, *_: (dataclasses.replace(rows, logits=rows.entropy), None), "logits|\\(RowStatistics"),
    ("branch_confidence", lambda *_: 10**400, "1000"),
    ("branch_confidence", lambda *_: Raising(1.0), "a value of type Raising"),
    ("minimum", lambda *_: Count(1), "1"),
    ("lookaheads", lambda *_: np.ma.array([0, 1], mask=[True, False]), "MaskedArray of shape"),
]
EXPECTED = {
    "rescore": "topk_ids int64 (24, 8), topk_logprobs float32 (24, 8), entropy float32 (24,)",
    "branch_confidence": "a finite number",
    "eligible": "a bool array of shape (",
    "threshold": "an array of numbers (int or float) of shape (",
    "rank": "an array of numbers (int or float) of shape (",
    "cut": "a whole number of at least 0",
    "minimum": "a whole number of at least 0",
    "edit": "a bool array of shape (3,), one value per position",
    "remask": ", one value per position, True for at most as many as remask_limit leaves",
    "lookaheads": "an array of at most 2 different indices of the ",
}


@pytest.mark.parametrize(("stage", "function", "message"), INVALID)
def test_an_invalid_result_is_named(
    decoder: Decoder, prompt: tuple[int, ...], stage: str, function: Callable[..., Any], message: str
) -> None:
    strategy = mine(**{stage: function})
    with pytest.raises(StrategyFailedError, match=f"strategy mine: {stage} returned {message}") as caught:
        run_stage(stage, decoder, prompt, strategy)
    assert EXPECTED[stage] in caught.value.expected


def test_more_remasked_positions_than_the_limit() -> None:
    every = checked_strategy(mine(remask=lambda view, _: np.ones(size_of(view), np.bool_)), 10).remask
    assert every is not None
    half = np.full(3, 0.5)
    assert every(RemaskView(half, accepted=5, before=5, limit=3), params_of()).all()
    with pytest.raises(StrategyFailedError, match="at most as many as remask_limit leaves"):
        every(RemaskView(half, accepted=5, before=5, limit=2), params_of())


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


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_is_no_function_is_rejected(stage: str) -> None:
    with pytest.raises(BadInputError, match=f"strategy mine: {stage} is 0.5\n  expected: functions"):
        mine(**{stage: 0.5})
    if stage not in ("edit", "remask"):
        with pytest.raises(BadInputError, match=f"strategy mine: {stage} is None"):
            mine(**{stage: None})
