"""Checks of the stages that installed and registered strategies bring. Built-in strategies run without them."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lopa.runtime.checked_values import shown
from lopa.runtime.contract.row_statistics import RowStatistics, statistics_problem
from lopa.runtime.errors import StrategyFailedError, raise_if_from_handler
from lopa.runtime.strategy.strategies import STRATEGIES
from lopa.runtime.strategy.strategy import STAGES, Strategy, identity
from lopa.runtime.strategy.views import BlockView, BranchView, Candidates, EditView, Memory, RemaskView, RoundView

_MAX_LOGPROB = 0.05
"""Largest log-probability that rounding of float16 may produce."""
_REMEDY = "correct the package of this strategy, or choose another strategy"
_WHOLE = frozenset({bool, int, *(np.dtype(code).type for code in np.typecodes["AllInteger"])})
_REAL = _WHOLE | {float, *(np.dtype(code).type for code in np.typecodes["Float"])}
"""Types of numbers. Instances of subclasses are rejected, as their methods may do anything."""

_VIEWS = (BlockView, BranchView, Candidates, EditView, RemaskView, RoundView, RowStatistics)
"""Types of arguments of stages that hold arrays. A memory belongs to its strategy and is passed as it is."""


def checked_strategy(strategy: Strategy, vocab_size: int) -> Strategy:
    """Return `strategy` with stages that raise StrategyFailedError for their exceptions and for invalid results.

    Their arguments hold read-only arrays, so that a stage that writes to them fails. A built-in strategy is returned
    unchanged. Token ids have to be below `vocab_size`.
    """
    if strategy.name in STRATEGIES:
        return strategy
    functions = {stage: getattr(strategy, stage) for stage in STAGES}
    stages: dict[str, Any] = {
        stage: partial(_run, strategy.name, stage, function, vocab_size)
        for stage, function in functions.items()
        if function not in (None, identity)
    }
    return replace(strategy, **stages)


@contextmanager
def errors_of_strategy(name: str, stage: str) -> Iterator[None]:
    """Raise exceptions of the strategy called `name` as StrategyFailedError, unless it is built in.

    Exceptions of signal handlers stay the caller's.
    """
    try:
        yield
    except Exception as error:  # another package's code may raise any error
        raise_if_from_handler(error)
        if name in STRATEGIES:
            raise
        received = f"strategy {name}: {stage} raised {shown(error)}"
        raise StrategyFailedError(received, expected="a result", remedy=_REMEDY) from error


def _run(name: str, stage: str, function: Callable[..., Any], vocab_size: int, *arguments: Any) -> Any:
    with errors_of_strategy(name, stage):
        result = function(*map(_read_only, arguments))
    expected, problem = _ROWS if stage == "rescore" else _CHECKS[stage][0], None
    try:
        if stage == "rescore":
            problem = _problem_of_rows(result, arguments[0], vocab_size)
        elif not _CHECKS[stage][1](result, *arguments[:-1]):
            problem = shown(result)
    except Exception as error:  # methods of the result, e.g. its comparisons, may raise any error
        raise_if_from_handler(error)
        problem = shown(result)
    if problem is None:
        return result
    raise StrategyFailedError(f"strategy {name}: {stage} returned {problem}", expected=expected, remedy=_REMEDY)


def _read_only(value: Any) -> Any:
    """Return `value` with read-only views in place of its arrays, which the decode uses again."""
    if isinstance(value, np.ndarray):
        view = value.view()
        view.setflags(write=False)
        return view
    if isinstance(value, _VIEWS):
        return type(value)(**{name: _read_only(each) for name, each in vars(value).items()})
    return tuple(map(_read_only, value)) if isinstance(value, tuple) else value


_ROWS = "(rows, memory): RowStatistics of the given shapes and types, log-probabilities descending; a Memory or None"


def _problem_of_rows(result: Any, rows: RowStatistics, vocab_size: int) -> str | None:
    """Return what is wrong with the `result` of the first stage for `rows` [n], or None."""
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], RowStatistics):
        return shown(result)
    found, memory = result
    if memory is not None and not isinstance(memory, Memory):
        return f"the memory {shown(memory)}"
    for field in ("topk_ids", "topk_logprobs", "entropy", *(["logits"] if found.logits is not None else [])):
        value, given = getattr(found, field), getattr(rows, field)
        if type(value) is not np.ndarray or (value.dtype, value.shape) != (given.dtype, given.shape):
            return f"{field} {shown(value)}"
    problem = statistics_problem(found, vocab_size) if len(rows.entropy) else None
    if problem is not None:
        return problem[0]
    logprobs = found.topk_logprobs
    if (logprobs[:, 1:] > logprobs[:, :-1]).any() or (logprobs > _MAX_LOGPROB).any():
        return "log-probabilities that ascend or exceed 0"
    return None if found.logits is None or (found.logits < np.inf).all() else "NaN or infinity as logits"


def _is_array(value: Any, kinds: str, like: Any) -> bool:
    """Return True if `value` is an array of `like`'s shape without NaN, of one of numpy's `kinds` of types."""
    is_alike = type(value) is np.ndarray and value.dtype.kind in kinds and value.shape == like.shape
    return bool(is_alike and not np.isnan(value).any())


def _is_count(value: Any, *_: object) -> bool:
    return type(value) in _WHOLE and bool(value >= 0)


def _is_confidence(value: Any, _: BranchView) -> bool:
    return type(value) in _REAL and math.isfinite(value)


def _may_be_remasked(value: Any, view: RemaskView) -> bool:
    return _is_array(value, "b", view.probabilities) and int(np.count_nonzero(value)) <= view.limit


def _are_indices(value: Any, branch: BranchView, count: int) -> bool:
    if type(value) is not np.ndarray or value.ndim != 1 or (value.size and value.dtype.kind not in "iu"):
        return False
    inside = (value >= 0) & (value < len(branch.positions))
    return len(np.unique(value)) == len(value) <= count and bool(inside.all())


_MASK, _NUMBERS = "a bool array, one value per position", "an array of numbers, one per position, without NaN"
_CHECKS: Mapping[str, tuple[str, Callable[..., bool]]] = {
    "branch_confidence": ("a finite number", _is_confidence),
    "eligible": (_MASK, lambda value, block: _is_array(value, "b", block.positions)),
    "threshold": (_NUMBERS, lambda value, block: _is_array(value, "fiu", block.positions)),
    "rank": (_NUMBERS, lambda value, block: _is_array(value, "fiu", block.positions)),
    "cut": ("a whole number of at least 0", _is_count),
    "minimum": ("a whole number of at least 0", _is_count),
    "edit": (_MASK, lambda value, view: _is_array(value, "b", view.tokens)),
    "remask": (f"{_MASK}, True for at most as many as remask_limit leaves", _may_be_remasked),
    "lookaheads": ("an integer array of different indices of positions, at most the given count", _are_indices),
}
"""Expected result of each stage, and the test of its result and arguments without the parameters."""
