"""Resolve the options of a request: the value of every option, the parameters, and the branches with their reason.

Requested options take precedence over the defaults of the bundle or server, the model's own, and the package's. The
default number of branches depends on the device, and so does whether equal rows are computed once.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, cast, get_args

from lopa.runtime.checked_values import check_choice, shown
from lopa.runtime.device_families import STAGE_SEPARATOR, is_on_processor
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.config import (
    DEFAULT_OPTIONS,
    OPTION_TABLE,
    OPTIONS,
    OWN_OPTIONS,
    PACKAGE_DEFAULTS,
    PER_REQUEST,
    GenerationConfig,
    checked_options,
    did_you_mean,
)
from lopa.runtime.generation_config.option_checks import Options, check_together, edits, grammars_given
from lopa.runtime.options import DEFAULT_BRANCHES, MAX_AUTO_BRANCHES, MAX_BRANCHES, DecodingParams
from lopa.runtime.options.option import PUBLISHED_STEP_LIMIT, Confidence, FrozenOptions, SharedRows
from lopa.runtime.options.option_fields import OptionFields
from lopa.runtime.strategy import Strategy, strategy_from_name
from lopa.runtime.strategy.installed import errors_of_strategy, own_value

NOTHING: Options = {}
_USUAL: Options = {**dict.fromkeys(OPTIONS), **GenerationConfig().requested(), **PACKAGE_DEFAULTS}
MIN_TO_LOOK_AHEAD = 8
"""Minimum number of positions that may be unmasked at a time for lookahead branches to save time. A step unmasks at
least one of them, and each lookahead one more."""
DEFAULT_DEVICES = ("cpu",)
_PLAIN = {each.name: OPTION_TABLE[each.name].default for each in fields(OptionFields)}
"""Options that a parameters has, with their defaults."""


@dataclass(frozen=True)
class BranchChoice:
    """A number of branches, and the reason for it as a phrase."""

    number: int | Literal["auto"]
    reason: str


@dataclass(frozen=True)
class ResolvedOptions:
    """Requested options, and the values that they and all defaults give."""

    config: GenerationConfig
    options: Mapping[str, Any]
    """Every option by name with defaults filled in, or None if the strategy or device determines it."""
    params: DecodingParams
    devices: tuple[str, ...]
    """Names of the devices that share the branches."""

    @property
    def preset(self) -> str | None:
        """Name of the bundle's preset that applies, or None."""
        name: str | None = self.options["preset"]
        return name

    @cached_property
    def branches(self) -> BranchChoice:
        """Number of branches with its reason."""
        return branch_choice(self.options, self.devices)


def resolve(
    config: GenerationConfig,
    *,
    own: Mapping[str, Any] = NOTHING,
    defaults: Mapping[str, Any] = NOTHING,
    devices: Sequence[str] = DEFAULT_DEVICES,
) -> DecodingParams:
    """Return a request's parameters from `config`, the `defaults` of a bundle or server, and the model's `own` options.

    Earlier ones take precedence. `devices` are the names of the devices that share the branches. Raises BadInputError
    for invalid combinations of options and for unknown or invalid defaults.
    """
    return params_from_options(merged_options(config, own=own, defaults=defaults), devices)


def params_from_options(options: Options, devices: Sequence[str]) -> DecodingParams:
    """Return a request's parameters from its merged options. Raises BadInputError for invalid options of a strategy."""
    strategy = strategy_from_name(options["strategy"])
    branches, auto_branches = _branches(options, devices)
    reference, max_new_tokens, block_size = options["reference"], options["max_new_tokens"], options["block_size"]
    own_options = _own_options(options, strategy)
    filters_given = options["top_k"] is not None or options["top_p"] is not None or bool(options["min_p"])
    computed: dict[str, Any] = {
        "block_add_threshold": options["block_add_threshold"] if strategy.pipelined else 1.0,
        "unmask_first_masked": options["unmask_first_masked"] or bool(grammars_given(options)),
        "confidence": _confidence(options["confidence"], own_options, strategy),
        "sub_block": _given_or(options["sub_block"], block_size),
        "block_steps": _given_or(options["block_steps"], block_size),
        "remask_threshold": _given_or(options["remask_threshold"], strategy.remask_threshold),
        "remask_limit": _given_or(options["remask_limit"], max_new_tokens),
        "drop_after_eos": _drops_after_eos(options),
        "logprobs": options["logprobs"] or bool(options["top_logprobs"]),
        "seed": _given_or(options["seed"], secrets.randbits(32) if options["temperature"] else 0),
    }
    return DecodingParams(
        **{name: _given_or(options[name], default) for name, default in _PLAIN.items()} | computed,
        strategy=strategy.name,
        own=own_options,
        branches=branches,
        auto_branches=auto_branches,
        stop=options["stop"],
        stop_token_ids=options["stop_token_ids"],
        logit_bias=FrozenOptions(_given_or(options["logit_bias"], NOTHING)),
        edits=edits(options),
        positions=_positions(max_new_tokens, block_size, strategy, reference=reference),
        filters=filters_given and (options["temperature"] > 0 or strategy.filters_greedy),
        top_p_of_kept=reference and options["alignment"] == "absolute" and bool(options["top_k"]),
        has_grammar=bool(grammars_given(options)),
        reasoning_budget=_given_or(options["reasoning_budget"], math.inf),
        has_choices=options["choices"] is not None,
        max_forwards=_given_or(options["max_forwards"], math.inf),
        deduplicate_rows="never" if strategy.canvas else _shared_rows(options, branches, devices),
        step_limit=_step_limit(options, strategy, own_options),
        overwrites_unmasked=reference and options["block_steps"] is not None,
    )


def _positions(max_new_tokens: int, block_size: int, strategy: Strategy, *, reference: bool) -> int:
    """Return the number of positions to generate: whole canvases, or in reference mode no shorter last block."""
    if strategy.canvas:
        return -(-max_new_tokens // block_size) * block_size
    return max_new_tokens - (max_new_tokens % block_size if reference else 0)


def _branches(options: Options, devices: Sequence[str]) -> tuple[int, bool]:
    """Return the maximum number of branches per step, and True if every step chooses their number."""
    number = branch_choice(options, devices).number
    return (MAX_AUTO_BRANCHES, True) if number == "auto" else (number, False)


def _own_options(options: Options, strategy: Strategy) -> FrozenOptions:
    """Return the checked options of the strategy, defaults included."""
    given = {**{name: options[name] for name in OWN_OPTIONS}, **(options["strategy_options"] or {})}
    return FrozenOptions(
        {
            own.name: own_value(strategy.name, own, given.get(own.name), options["max_new_tokens"])
            for own in strategy.options
        }
    )


def _confidence(given: Confidence, own_options: FrozenOptions, strategy: Strategy) -> Confidence:
    if strategy.confidence is None:
        return given
    with errors_of_strategy(strategy.name, "confidence"):
        found = strategy.confidence(own_options)
    return cast(Confidence, check_choice(f"confidence of strategy {strategy.name}", found, get_args(Confidence)))


def _drops_after_eos(options: Options) -> bool:
    """Return True if rows behind an unmasked end of text are dropped.

    Editing may replace an end of text, which would bring the dropped positions back. With a grammar it never does.
    """
    if edits(options):
        return bool(grammars_given(options))
    return bool(options["drop_after_eos"] and options["stop_at_eos"] and not options["reference"])


def _step_limit(options: Options, strategy: Strategy, own_options: Mapping[str, Any]) -> int:
    """Return the maximum number of steps in reference mode."""
    if strategy.whole and "steps" in own_options:
        return int(own_options["steps"])
    if not edits(options):
        return PUBLISHED_STEP_LIMIT
    # A block's steps without masks are limited, and each of the others unmasks a token.
    limit: int = _given_or(options["editing_limit"], OPTION_TABLE["editing_limit"].default)
    blocks = int(options["max_new_tokens"] // options["block_size"] + 2)
    return max(PUBLISHED_STEP_LIMIT, blocks * (int(options["block_size"]) + limit))


def _shared_rows(options: Options, branches: int, devices: Sequence[str]) -> SharedRows:
    if options["deduplicate_rows"] is not None:
        return "always" if options["deduplicate_rows"] else "never"
    is_single = branches == 1 and options["choices"] is None
    return "never" if is_single or not may_share_rows(devices) else "auto"


def _given_or(value: Any, default: Any) -> Any:
    return default if value is None else value


def branch_choice(options: Options, devices: Sequence[str]) -> BranchChoice:
    """Return the number of branches that the merged `options` request, or the default of `devices`.

    `devices` share the branches. The choice depends only on their names, so an answer does not depend on the load.
    """
    strategy, requested = strategy_from_name(options["strategy"]), options["branches"]
    if options["speculative"]:
        return _speculative_choice(requested, devices)
    if not strategy.looks_ahead:
        return BranchChoice(1, f"{strategy.name} does not look ahead")
    if requested == "auto":
        return BranchChoice("auto", "chosen step by step from the cost table of this device")
    if requested is not None:
        return BranchChoice(requested, "requested")
    if strategy.default_branches is not None:
        number = strategy.default_branches
        usual = "looks ahead only on request" if number == 1 else f"has {number} branches by default"
        return BranchChoice(number, f"{strategy.name} {usual}")
    if options["reference"]:
        return BranchChoice(DEFAULT_BRANCHES, "default of the published implementation")
    reason = reason_against_lookahead(options["block_size"], options["sub_block"], options["block_add_threshold"])
    if reason is not None:
        return BranchChoice(1, reason)
    if not all(map(is_on_processor, devices)):
        return BranchChoice(DEFAULT_BRANCHES, "an accelerator verifies several branches in about the time of one")
    if len(devices) > 1:
        return BranchChoice(min(len(devices), MAX_BRANCHES), "one for each CPU device")
    return BranchChoice(1, "on a CPU more branches cost more time than they save (docs/how-to/choose-a-strategy.md)")


def _speculative_choice(requested: int | None, devices: Sequence[str]) -> BranchChoice:
    """Return the choice of a speculative decode."""
    if requested is not None:
        return BranchChoice(requested, "requested")
    if not all(map(is_on_processor, devices)):
        return BranchChoice(DEFAULT_BRANCHES, "speculative: drafts of the next three steps")
    if len(devices) > 1:
        return BranchChoice(min(len(devices), MAX_BRANCHES), "speculative: one for each CPU device")
    return BranchChoice(2, "speculative: on a CPU more than one draft costs more time than it saves")


def reason_against_lookahead(block_size: int, sub_block: int | None, block_add_threshold: float) -> str | None:
    """Return a sentence that explains why lookahead branches save little time with these blocks, or None if they
    may."""
    size = block_size if sub_block is None else sub_block
    if block_add_threshold < 1 or size >= MIN_TO_LOOK_AHEAD:
        return None
    what = "blocks" if sub_block is None else "sub-blocks"
    left = f"at most {size - 1} position{'' if size == 2 else 's'}" if size > 1 else "no position"
    return f"{what} of {size}, one at a time, leave {left} for lookahead branches"


def may_share_rows(devices: Sequence[str]) -> bool:
    """Return True if equal rows of several branches may be computed once by default.

    Several devices or stages need one window per branch to share the work. A shared window does not fit the shape
    buckets of compiled engines.
    """
    return len(devices) == 1 and STAGE_SEPARATOR not in devices[0] and is_on_processor(devices[0])


def merged_options(config: GenerationConfig, *, own: Options = NOTHING, defaults: Options = NOTHING) -> Options:
    """Return every option by name: the requested value, or otherwise the value of `defaults`, `own` (the model) or the
    package.

    Defaults that the strategy does not use, or that contradict a requested option, are dropped. Options without any
    value are None. Raises BadInputError for unknown options, invalid values and invalid combinations.
    """
    requested, own, defaults = config.requested(), checked_options(own), checked_options(defaults)
    try:
        return _merge({**defaults, **requested}, own)
    except BadInputError:
        if not defaults:
            raise
    return _merge({**_applicable_defaults(own, defaults, requested), **requested}, own)


def defaults_beside(own: Options, defaults: Options, requested: Options) -> dict[str, Any]:
    """Return the `defaults` that apply together with the `requested` options; `own` are the model's.

    A default that contradicts a requested option is dropped, e.g. gamma if another strategy is requested. The default
    strategy applies unless one is requested. Raises BadInputError if the requested options are invalid with it.
    """
    return _applicable_defaults(checked_options(own), checked_options(defaults), checked_options(requested))


def _applicable_defaults(own: Options, defaults: Options, requested: Options) -> dict[str, Any]:
    strategy = {name: value for name, value in defaults.items() if name == "strategy" and name not in requested}
    base = {**strategy, **requested}
    others = {name: value for name, value in defaults.items() if name not in base}
    if others and _is_valid({**base, **others}, own):
        return {**strategy, **others}
    _merge(base, own)
    found = dict(strategy)
    while True:  # an option may need another one
        added: dict[str, Any] = {}
        for name, value in others.items():
            if name not in found and _is_valid({**base, **found, **added, name: value}, own):
                added[name] = value
        if not added:
            return found
        found |= added


def _merge(given: Options, own: Options) -> Options:
    """Return every option: the `given` value, or otherwise the value of `own` or the package, adapted to strategy and
    alignment.

    Raises BadInputError for invalid combinations.
    """
    usual: dict[str, Any] = {**_USUAL, **own}
    merged = {**usual, **given}
    strategy, slides = strategy_from_name(merged["strategy"]), merged["alignment"] == "sliding"
    if strategy.default_cache is not None:
        usual["cache"] = strategy.default_cache
    if strategy.whole or slides:
        usual["sub_block"] = None
    if strategy.canvas:
        usual["temperature"] = 1.0
    if not strategy.block_steps or slides:
        usual["block_steps"] = None
    options = {**usual, **given}
    if strategy.canvas:  # clients send these for draws from all tokens, as canvases draw
        options |= {name: None for name, every in (("top_p", 1), ("top_k", 0)) if options[name] == every}
    if strategy.whole:
        options["block_size"] = options["max_new_tokens"]
        options["cache"] = "none" if options["cache"] == "blocks" else options["cache"]
    check_together(options, strategy)
    return options


def _is_valid(given: Options, own: Options) -> bool:
    try:
        _merge(given, own)
    except BadInputError:
        return False
    return True


def checked_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `defaults` as JSON values, with "inf" for infinity.

    Raises BadInputError for names that are not in DEFAULT_OPTIONS. `resolve` checks the values.
    """
    for name in defaults:
        if name not in DEFAULT_OPTIONS:
            per_request = name in PER_REQUEST
            raise BadInputError(
                f"invalid default for {shown(name)}, "
                + ("which only requests can set" if per_request else "an unknown option"),
                expected="a decoding option that bundles can have (docs/reference/commands.md)",
                remedy="remove it" if per_request else did_you_mean(name, DEFAULT_OPTIONS),
            )
    return {name: _in_json(value) for name, value in defaults.items()}


def options_from_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of checked_defaults as options of GenerationConfig."""
    return {name: math.inf if value == "inf" else value for name, value in defaults.items()}


def _in_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else "inf" if value == math.inf else value
