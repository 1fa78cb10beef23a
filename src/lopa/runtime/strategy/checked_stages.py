"""Checks of the stages that installed and registered strategies bring. Built-in strategies run without them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np

from lopa.runtime.checked_values import shown
from lopa.runtime.contract import Int64
from lopa.runtime.contract.row_statistics import RowStatistics, statistics_problem
from lopa.runtime.errors import StrategyFailedError, raise_if_from_handler
from lopa.runtime.strategy.strategies import STRATEGIES
from lopa.runtime.strategy.strategy import Strategy, identity
from lopa.runtime.strategy.views import BlockView, BranchView, EditView, Memory, RemaskView

_MAX_LOGPROB = 0.05
"""Largest log-probability that rounding of float16 may produce."""
_MAX_SHOWN_VALUES = 8
_REMEDY = "correct the package of this strategy, or choose another strategy"


class _InvalidError(Exception):
    """A stage's result that cannot be used: what it is, and what was expected."""


def checked_strategy(strategy: Strategy, vocab_size: int) -> Strategy:
    """Return `strategy` with stages that raise StrategyFailedError for their exceptions and for invalid results.

    A built-in strategy is returned unchanged. Ids have to be below `vocab_size`.
    """
    if strategy.name in STRATEGIES:
        return strategy
    checks: Mapping[str, Callable[..., Any]] = {
        "rescore": partial(_rescored, vocab_size),
        "branch_confidence": _confidence,
        "eligible": _mask_of_block,
        "threshold": _numbers,
        "rank": _numbers,
        "cut": _count,
        "minimum": _count,
        "edit": _mask_of_edits,
        "remask": _mask_of_remasked,
        "lookaheads": _indices,
    }
    functions = {stage: getattr(strategy, stage) for stage in checks}
    stages: dict[str, Any] = {
        stage: partial(_run, strategy.name, stage, function, checks[stage])
        for stage, function in functions.items()
        if function is not None and function is not identity
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
        raise StrategyFailedError(
            f"strategy {name}: {stage} raised {shown(error)}", expected="a result", remedy=_REMEDY
        ) from error


def _run(name: str, stage: str, function: Callable[..., Any], check: Callable[..., Any], *arguments: Any) -> Any:
    with errors_of_strategy(name, stage):
        result = function(*arguments)
    try:
        return check(result, *arguments[:-1])
    except _InvalidError as error:
        received, expected = error.args
        raise StrategyFailedError(
            f"strategy {name}: {stage} returned {received}", expected=expected, remedy=_REMEDY
        ) from None


# Checks of single stages: functions of a result and of the stage's arguments without the plan. They return the result.


def _rescored(
    vocab_size: int, result: Any, rows: RowStatistics, positions: Int64, _: Memory | None
) -> tuple[RowStatistics, Memory | None]:
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], RowStatistics):
        _refuse(result, "a pair of RowStatistics and a memory, or None for no memory")
    given, after = result
    if after is not None and not isinstance(after, Memory):
        _refuse(after, "None or a memory with a method before(end)")
    found = RowStatistics(
        _array(given.topk_ids, "iu", rows.topk_ids.shape, "topk_ids").astype(np.int64, copy=False),
        _array(given.topk_logprobs, "f", rows.topk_logprobs.shape, "topk_logprobs").astype(np.float32, copy=False),
        _array(given.entropy, "f", rows.entropy.shape, "entropy").astype(np.float32, copy=False),
        None if given.logits is None else _array(given.logits, "f", (len(positions), vocab_size), "logits"),
    )
    problem = statistics_problem(found, vocab_size) if len(positions) else None
    if problem is not None:
        raise _InvalidError(*problem)
    logprobs = found.topk_logprobs
    if (logprobs[:, 1:] > logprobs[:, :-1]).any() or (logprobs > _MAX_LOGPROB).any():
        raise _InvalidError("topk_logprobs that ascend or exceed 0", "log-probabilities of each row, the largest first")
    if found.logits is not None and not (found.logits < np.inf).all():
        raise _InvalidError("NaN or infinity in the logits", "numbers, or minus infinity")
    return found, after


def _confidence(result: Any, _: BranchView) -> float:
    if not isinstance(result, (int, float, np.integer, np.floating)) or not np.isfinite(result):
        _refuse(result, "a finite number")
    return float(result)


def _mask_of_block(result: Any, block: BlockView) -> Any:
    return _array(result, "b", block.positions.shape)


def _numbers(result: Any, block: BlockView) -> Any:
    found = _array(result, "fiu", block.positions.shape)
    if np.isnan(found).any():
        raise _InvalidError("NaN", f"{len(found)} numbers")
    return found


def _count(result: Any, *_: object) -> int:
    if not isinstance(result, (int, np.integer)) or result < 0:
        _refuse(result, "a whole number of at least 0")
    return int(result)


def _mask_of_edits(result: Any, view: EditView) -> Any:
    return _array(result, "b", view.tokens.shape)


def _mask_of_remasked(result: Any, view: RemaskView) -> Any:
    found = _array(result, "b", view.probabilities.shape)
    if np.count_nonzero(found) > view.limit:
        raise _InvalidError(f"{np.count_nonzero(found)} positions", f"at most {view.limit}, the rest of remask_limit")
    return found


def _indices(result: Any, branch: BranchView, count: int) -> Any:
    size = len(branch.positions)
    found = _array(result, "iu", None).astype(np.int64, copy=False)
    if len(found) > count or len(set(found.tolist())) < len(found) or not ((found >= 0) & (found < size)).all():
        _refuse(result, f"at most {count} different indices from 0 to {size - 1}")
    return found


def _array(value: Any, kinds: str, shape: tuple[int, ...] | None, name: str = "") -> Any:
    """Return `value` as an array of numpy's type `kinds` and this shape; None for any length. An empty one may have any
    type."""
    try:
        found = np.asarray(value)
    except Exception as error:  # of another package's type
        raise_if_from_handler(error)
        found = np.empty((0, 0))
    if (found.size and found.dtype.kind not in kinds) or (found.ndim != 1 if shape is None else found.shape != shape):
        what = {"b": "bool", "f": "float"}.get(kinds, "integer" if kinds == "iu" else "numeric")
        length = "of one dimension" if shape is None else f"with shape {shape}"
        _refuse(value, f"{name or 'an array'} of type {what} {length}")
    return found.astype(np.bool_, copy=False) if kinds == "b" else found


def _refuse(value: Any, expected: str) -> NoReturn:
    is_large = isinstance(value, np.ndarray) and value.size > _MAX_SHOWN_VALUES
    raise _InvalidError(f"an array of {value.dtype} with shape {value.shape}" if is_large else shown(value), expected)
