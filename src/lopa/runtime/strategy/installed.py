"""Installed and registered strategies: their registry, and checks of their stages. Built-in ones run unchecked."""

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

import numpy as np

from lopa.runtime.checked_values import shown
from lopa.runtime.contract.row_statistics import RowStatistics, statistics_problem
from lopa.runtime.errors import BadInputError, LopaError, StrategyFailedError, raise_if_from_handler
from lopa.runtime.options import GRAMMARS
from lopa.runtime.options.option import Option
from lopa.runtime.options.option_fields import OptionFields
from lopa.runtime.strategy.strategies import STRATEGIES
from lopa.runtime.strategy.strategy import (
    STAGES,
    BlockView,
    BranchView,
    Candidates,
    EditView,
    Memory,
    RemaskView,
    RoundView,
    Strategy,
    identity,
)

ENTRY_POINTS = "lopa.strategies"
"""Group of entry points. Each loads a Strategy that has the entry point's name."""
_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_registered: dict[str, Strategy] = {}
_MAX_LOGPROB = 0.05
"""Largest log-probability that rounding of float16 may produce."""
_REMEDY = "correct the package of this strategy, or choose another strategy"
_WHOLE = frozenset({bool, int, *(np.dtype(code).type for code in np.typecodes["AllInteger"])})
_REAL = _WHOLE | {float, *(np.dtype(code).type for code in np.typecodes["Float"])}
"""Types of numbers. Instances of subclasses are rejected, as their methods may do anything."""

_COMMON_OPTIONS = (
    *(each.name for each in fields(OptionFields)),
    *GRAMMARS,
    *("branches", "choices", "deduplicate_rows", "logit_bias", "max_forwards", "preset", "reasoning_budget"),
    *("stop", "stop_token_ids", "strategy", "strategy_options"),
)
"""Names that options of a strategy may not have: a request's value would go to the common option."""
_USUAL_LENGTH = 256
"""Value of max_new_tokens for which the default of an option is checked."""
_PLAIN = (bool, int, float, str)
"""Types of values of options."""
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
def errors_of_strategy(name: str, stage: str, unchanged: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise exceptions of the strategy called `name` as StrategyFailedError, unless it is built in.

    Exceptions of signal handlers and those in `unchanged` stay the caller's.
    """
    try:
        yield
    except Exception as error:  # another package's code may raise any error
        raise_if_from_handler(error)
        if name in STRATEGIES or isinstance(error, unchanged):
            raise
        received = f"strategy {name}: {stage} raised {shown(error)}"
        _LOG.debug(received, exc_info=error)
        remedy = f"{_REMEDY} (the log at level DEBUG, with --verbose, has the traceback)"
        raise StrategyFailedError(received, expected="a result", remedy=remedy) from error


def own_value(strategy: str, own: Option, given: Any, max_new_tokens: int) -> Any:
    """Return the checked value `given` of a strategy's own option, or the default for None.

    Raises BadInputError for a value that the option refuses. Raises StrategyFailedError if a check or default of
    another package raises another error, or returns anything but a bool, int, float or str.
    """
    with errors_of_strategy(strategy, f"option {own.name}", (BadInputError,)):
        value = own.value(given, max_new_tokens)
    if type(value) not in _PLAIN:
        received = f"strategy {strategy}: option {own.name} has the value {shown(value)}"
        raise StrategyFailedError(received, expected="a bool, int, float or str", remedy=_REMEDY)
    return value


def _run(name: str, stage: str, function: Callable[..., Any], vocab_size: int, *arguments: Any) -> Any:
    with errors_of_strategy(name, stage):
        result = function(*map(_read_only, arguments))
    problem = None
    try:
        if stage == "rescore":
            problem = _problem_of_rows(result, arguments[0], vocab_size)
        elif not _CHECKS[stage][1](result, *arguments[:-1]):
            problem = _described(result)
    except Exception as error:  # methods of the result, e.g. its comparisons, may raise any error
        raise_if_from_handler(error)
        problem = shown(result)
    if problem is None:
        return result
    received, expected = f"strategy {name}: {stage} returned {problem}", _expected(stage, *arguments)
    raise StrategyFailedError(received, expected=expected, remedy=_REMEDY)


def _expected(stage: str, view: Any, *more: Any) -> str:
    """Return the expected result of a stage, with the shapes and types of arrays, from the arguments of the stage."""
    if stage == "rescore":
        arrays = (f"{name} {each.dtype} {each.shape}" for name, each in vars(view).items() if each is not None)
        return f"{_ROWS}; {', '.join(arrays)}"
    count = len(next(iter(vars(view).values()))) if isinstance(view, _VIEWS) else len(view)
    return _CHECKS[stage][0].format(count, *more)


def _described(value: Any) -> str:
    """Return a short form of a result, with the shape and type of an array."""
    if not isinstance(value, np.ndarray):
        return shown(value)
    kind = "array" if type(value) is np.ndarray else type(value).__name__
    return f"{kind} of shape {value.shape} and type {value.dtype}: {shown(value)}"


def _read_only(value: Any) -> Any:
    """Return `value` with read-only views in place of its arrays, which the decode uses again."""
    if isinstance(value, np.ndarray):
        view = value.view()
        view.setflags(write=False)
        return view
    if isinstance(value, _VIEWS):
        return type(value)(**{name: _read_only(each) for name, each in vars(value).items()})
    return tuple(map(_read_only, value)) if isinstance(value, tuple) else value


_ROWS = (
    "(rows, memory): RowStatistics of the given shapes and types, log-probabilities descending, and a Memory or None"
)


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
            return f"{field} {_described(value)}"
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


_MASK = "a bool array of shape ({},), one value per position"
_NUMBERS = "an array of numbers (int or float) of shape ({},), one per position, without NaN"
_CHECKS: Mapping[str, tuple[str, Callable[..., bool]]] = {
    "branch_confidence": ("a finite number", _is_confidence),
    "eligible": (_MASK, lambda value, block: _is_array(value, "b", block.positions)),
    "threshold": (_NUMBERS, lambda value, block: _is_array(value, "fiu", block.positions)),
    "rank": (_NUMBERS, lambda value, block: _is_array(value, "fiu", block.positions)),
    "cut": ("a whole number of at least 0", _is_count),
    "minimum": ("a whole number of at least 0", _is_count),
    "edit": (_MASK, lambda value, view: _is_array(value, "b", view.tokens)),
    "remask": (f"{_MASK}, True for at most as many as remask_limit leaves", _may_be_remasked),
    "lookaheads": ("an array of at most {1} different indices of the {0} positions, of an integer type", _are_indices),
}
"""Expected result of each stage, and the test of its result and arguments without the parameters.

The text has fields for the number of positions and the further arguments.
"""


def register_strategy(strategy: Strategy) -> None:
    """Register `strategy` under its name in this process.

    To register a strategy for every process, a package declares an entry point in the group "lopa.strategies". Raises
    BadInputError for an object that is not a Strategy, and for an invalid name or one that is already in use. It also
    raises it for stages or options of a wrong type.
    """
    if not isinstance(strategy, Strategy):
        raise BadInputError(
            f"{shown(strategy)} is not a strategy",
            expected="an instance of lopa.runtime.strategy.Strategy",
            remedy="pass a Strategy (docs/how-to/choose-a-strategy.md, Add your own strategy)",
        )
    name = strategy.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadInputError(
            f"invalid strategy name {shown(name)}",
            expected="1 to 64 lower-case letters, digits and underscores, starting with a letter",
            remedy="rename the strategy",
        )
    has_options = isinstance(strategy.options, tuple) and all(isinstance(each, Option) for each in strategy.options)
    wrong = [] if has_options else ["options"]
    wrong += [] if isinstance(strategy.summary, str) else ["summary"]
    wrong += [stage for stage in STAGES if not callable(getattr(strategy, stage))]
    wrong = [each for each in wrong if each not in ("edit", "remask") or getattr(strategy, each) is not None]
    if wrong:
        raise BadInputError(
            f"strategy {name}: {wrong[0]} is {shown(getattr(strategy, wrong[0]))}",
            expected="functions as stages, a text as summary, and a tuple of Option as options",
            remedy="correct the strategy",
        )
    _check_options(strategy)
    known = STRATEGIES.get(name) or _registered.get(name)
    if known is not None and known != strategy:
        raise BadInputError(
            f"strategy name {name} is already registered", expected="an unused name", remedy="rename the strategy"
        )
    if known is None:
        _registered[name] = strategy


def _check_options(strategy: Strategy) -> None:
    """Raise BadInputError for an option that cannot be checked, and for a default that it refuses itself."""
    names = [*_COMMON_OPTIONS, *(each.name for each in strategy.options)]
    for own in strategy.options:
        kind, words = own.value_kind, get_args(own.value_kind)
        is_checked = own.check is not None or kind in (bool, int, float)
        received = f"strategy {strategy.name}: option {shown(own.name)}"
        if not isinstance(own.name, str) or not _NAME.fullmatch(own.name) or names.count(own.name) > 1:
            expected = "different names of lower-case letters, digits and underscores, not those of common options"
        elif not is_checked and not (words and all(isinstance(each, str) for each in words)):
            received, expected = f"{received} of kind {shown(kind)}", "kind=bool, int, float or Literal of texts"
        else:
            try:
                own_value(strategy.name, own, own_value(strategy.name, own, None, _USUAL_LENGTH), _USUAL_LENGTH)
                continue
            except LopaError:
                received, expected = f"{received} has the default {shown(own.default)}", "a value that it accepts"
        raise BadInputError(received, expected=expected, remedy="correct the strategy")


def strategy_names() -> tuple[str, ...]:
    """Return the names of all strategies, built-in ones first. This imports no other package."""
    return (*STRATEGIES, *{**_registered, **_entry_points()})


def strategy_from_name(name: object) -> Strategy:
    """Return the strategy called `name`. If an entry point declares it, import that package.

    Raises BadInputError for an unknown name and for an entry point that cannot be loaded.
    """
    if isinstance(name, str):
        known = STRATEGIES.get(name) or _registered.get(name)
        if known is not None:
            return known
        if name in _entry_points():
            strategy = _loaded(_entry_points()[name])
            try:
                register_strategy(strategy)
            except BadInputError as error:
                origin = _origin(_entry_points()[name])
                raise error.with_received(f"strategy {name}: {origin}: {error.received}") from error
            return strategy
    near = get_close_matches(name[:80] if isinstance(name, str) else "", strategy_names(), n=1)
    raise BadInputError(
        f"unknown strategy {shown(name)}",
        expected="one of " + ", ".join(strategy_names()),
        remedy=f"did you mean {near[0]}?" if near else "use one of these",
        operator="" if near else "install the package that has it and restart the program or server",
    )


def strategy_with_option(name: object) -> str | None:
    """Return an installed strategy with an option `name`, or None. Packages that cannot be imported are skipped."""
    for each in strategy_names():
        with suppress(LopaError):
            if each not in STRATEGIES and any(own.name == name for own in strategy_from_name(each).options):
                return each
    return None


@cache
def _entry_points() -> Mapping[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=ENTRY_POINTS) if each.name not in STRATEGIES}


def _loaded(entry_point: EntryPoint) -> Strategy:
    origin = _origin(entry_point)
    try:
        strategy = entry_point.load()
    except Exception as error:  # the import of another package may raise any error
        raise_if_from_handler(error)
        raise BadInputError(
            f"strategy {entry_point.name}: {origin} cannot be imported: {error}",
            expected="a package that can be imported",
            remedy="restart this program or server if it was just installed; update it, or choose another strategy",
        ) from error
    if not isinstance(strategy, Strategy) or strategy.name != entry_point.name:
        raise BadInputError(
            f"strategy {entry_point.name}: {origin} is {shown(strategy)}",
            expected="a Strategy with the entry point's name",
            remedy="correct the package, or choose another strategy",
        )
    return strategy


def _origin(entry_point: EntryPoint) -> str:
    return f"entry point {entry_point.value} of {entry_point.dist.name if entry_point.dist else 'a package'}"
