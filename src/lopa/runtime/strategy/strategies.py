"""The table of built-in strategies, and the registry of installed ones."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError, raise_if_from_handler
from lopa.runtime.options.choices import MAX_ENTROPY, MAX_POSITIONS, MAX_STEPS, MAX_TEMPERATURE, Confidence
from lopa.runtime.strategy import strategy as stages
from lopa.runtime.strategy.strategy import STAGES, OwnOption, Strategy

ENTRY_POINTS = "lopa.strategies"
"""Group of entry points. Each loads a Strategy that has the entry point's name."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CONFIDENCE_OF_ALG: Mapping[str, Confidence] = {
    "origin": "probability",
    "maskgit_plus": "probability",
    "topk_margin": "margin",
    "entropy": "neg_entropy",
}


def _confidence_of_alg(own: Mapping[str, Any]) -> Confidence:
    return _CONFIDENCE_OF_ALG[own["alg"]]


STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            name="lopa",
            summary="decode as D2F, with lookahead branches that are verified in the same forward (LoPA)",
            remask=stages.least_probable,
            edit=stages.other_token_above,
            pipelined=True,
            looks_ahead=True,
            default_branches=None,
            from_one_branch=False,
        ),
        Strategy(
            name="d2f",
            summary="unmask tokens above a threshold, in several blocks at a time (D2F)",
            remask=stages.least_probable,
            edit=stages.other_token_above,
            pipelined=True,
        ),
        Strategy(
            name="threshold",
            summary="unmask tokens above a threshold, block by block (Fast-dLLM)",
            remask=stages.least_probable,
            edit=stages.other_token_above,
            block_steps=True,
        ),
        Strategy(
            name="vanilla",
            summary="unmask the most confident token per step, block by block",
            threshold=stages.never,
            edit=stages.other_token_above,
            block_steps=True,
            unmasks_first=False,
        ),
        Strategy(
            name="sequential",
            summary="unmask one token per step, from left to right",
            threshold=stages.never,
            rank=stages.left_to_right,
            edit=stages.other_token_above,
            block_steps=True,
            unmasks_first=False,
            overwrites_unmasked=False,
        ),
        Strategy(
            name="eb",
            summary="unmask tokens as long as the sum of their entropies stays within a bound (EB-Sampler)",
            threshold=stages.if_best_is_certain,
            cut=stages.within_entropy_bound,
            remask=stages.least_probable,
            edit=stages.other_token_above,
            pipelined=True,
            looks_ahead=True,
            options=(
                OwnOption(
                    name="gamma",
                    help="Maximum total entropy, in nats, of the tokens unmasked per block and step, excluding the "
                    "largest.",
                    default=0.2,
                    infinite=True,
                    max=1e308,
                ),
            ),
        ),
        Strategy(
            name="wino",
            summary="unmask tokens above a low threshold, and remask improbable ones (WINO)",
            rank=stages.by_probability,
            cut=stages.wino_cap,
            remask=stages.least_probable,
            remask_threshold=0.9,
            from_one_branch=False,
            unmasks_first=False,
        ),
        Strategy(
            name="dream",
            summary="unmask the answer in a fixed number of steps (Dream)",
            rescore=stages.on_schedule,
            threshold=stages.by_schedule,
            rank=stages.by_drawn_confidence,
            minimum=stages.share_of_schedule,
            whole=True,
            filters_greedy=True,
            unmasks_first=False,
            confidence=_confidence_of_alg,
            options=(
                OwnOption(
                    name="alg",
                    help="Order in which positions are unmasked, by Dream's names: origin (random), maskgit_plus "
                    "(probability), topk_margin or entropy.",
                    default="entropy",
                    choices=tuple(_CONFIDENCE_OF_ALG),
                ),
                OwnOption(
                    name="steps",
                    help="Number of denoising steps, by default one per token.",
                    default=lambda max_new_tokens: min(max_new_tokens, MAX_STEPS),
                    min=1,
                    max=MAX_STEPS,
                ),
                OwnOption(
                    name="alg_temp",
                    help="Temperature at which positions are drawn by their confidence; 0 takes the most confident.",
                    default=0.0,
                    max=MAX_TEMPERATURE,
                ),
            ),
        ),
        Strategy(
            name="top_n",
            summary="unmask a fixed number of tokens per block and step",
            threshold=stages.never,
            minimum=stages.fixed_count,
            edit=stages.other_token_above,
            options=(
                OwnOption(
                    name="tokens_per_step",
                    help="Tokens unmasked per block and step.",
                    default=2,
                    min=1,
                    max=MAX_POSITIONS,
                ),
            ),
        ),
        Strategy(
            name="factor",
            summary="unmask as many tokens as their joint probability allows (Fast-dLLM)",
            threshold=stages.no_threshold,
            rank=stages.by_probability,
            cut=stages.within_factor,
            edit=stages.other_token_above,
            pipelined=True,
            options=(
                OwnOption(
                    name="factor",
                    help="Unmask the n most probable tokens if (n + 1) (1 - probability of the n-th) is below this.",
                    default=1.0,
                    max=MAX_POSITIONS,
                ),
            ),
        ),
        Strategy(
            name="klass",
            summary="unmask tokens above a threshold whose distribution is stable (KLASS)",
            rescore=stages.with_divergences,
            eligible=stages.stable,
            threshold=stages.constant_inclusive,
            edit=stages.other_token_above,
            pipelined=True,
            options=(
                OwnOption(
                    name="kl_threshold",
                    help="KL divergence, in nats, between steps below which a distribution counts as stable.",
                    default=0.01,
                    max=MAX_ENTROPY,
                ),
            ),
        ),
        Strategy(
            name="credit",
            summary="unmask tokens above a threshold, with a bonus for tokens that stay the best (CreditDecoding)",
            rescore=stages.with_credit,
            edit=stages.other_token_above,
            pipelined=True,
        ),
        Strategy(
            name="local_leap",
            summary="unmask tokens above a threshold that is lower near certain tokens (LocalLeap)",
            threshold=stages.lower_near_anchors,
            edit=stages.other_token_above,
            pipelined=True,
        ),
    )
}
"""Built-in strategies by name."""
_registered: dict[str, Strategy] = {}


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
            remedy="pass a Strategy (docs/concepts/decoding.md, Your own strategy)",
        )
    name = strategy.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadInputError(
            f"invalid strategy name {shown(name)}",
            expected="1 to 64 lower-case letters, digits and underscores, starting with a letter",
            remedy="rename the strategy",
        )
    has_options = isinstance(strategy.options, tuple) and all(isinstance(each, OwnOption) for each in strategy.options)
    wrong = [] if has_options else ["options"]
    wrong += [stage for stage in STAGES if not callable(getattr(strategy, stage))]
    wrong = [each for each in wrong if each not in ("edit", "remask") or getattr(strategy, each) is not None]
    if wrong:
        raise BadInputError(
            f"strategy {name}: {wrong[0]} is {shown(getattr(strategy, wrong[0]))}",
            expected="functions as stages, and a tuple of OwnOption as options",
            remedy="correct the strategy",
        )
    known = STRATEGIES.get(name) or _registered.get(name)
    if known is not None and known != strategy:
        raise BadInputError(
            f"strategy name {name} is already registered", expected="an unused name", remedy="rename the strategy"
        )
    if known is None:
        _registered[name] = strategy


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
    raise BadInputError(
        f"unknown strategy {shown(name)}",
        expected="one of " + ", ".join(strategy_names()),
        remedy="use one of these strategies",
    )


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
            remedy="update or uninstall that package, or choose another strategy",
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
