"""Checks of combinations of options. Each raises BadInputError.

They take every option by name; the value is None if neither a request nor a default sets it.
"""

from collections.abc import Mapping
from typing import Any

from lopa.runtime.checked_values import check_int, shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.config import OWN_OPTIONS
from lopa.runtime.plan import CONSTRAINTS, GRAMMARS, WHOLE_CACHES
from lopa.runtime.strategy import STRATEGIES, Strategy

Options = Mapping[str, Any]


def check_together(options: Options, strategy: Strategy) -> None:
    """Raise BadInputError for an invalid combination of options."""
    _check_parts_of_blocks(options)
    _check_own_options(options, strategy)
    _check_first_masked(options)
    _check_cache(options, strategy)
    _check_sliding(options)
    _check_speculative(options, strategy)
    _check_remasking(options, strategy)
    _check_editing(options, strategy)
    _check_early_stop(options)
    _check_branches(options, strategy)
    _check_grammar(options, strategy)
    _check_choices(options)
    _check_anytime(options)


def grammars_given(options: Options) -> list[str]:
    """Return the names of the given options whose answers are read by a grammar."""
    return [name for name in CONSTRAINTS if options[name] is not None]


def edits(options: Options) -> bool:
    """Return True if unmasked tokens may be replaced. In reference mode a threshold of 1 counts too."""
    threshold = options["editing_threshold"]
    return threshold is not None and (threshold < 1 or options["reference"])


def _check_parts_of_blocks(options: Options) -> None:
    for name in ("sub_block", "block_steps"):
        if options[name] is not None:
            check_int(name, options[name], min=1, max=options["block_size"])


_OF_SOME_STRATEGIES = (
    *OWN_OPTIONS,
    "unmask_first_masked",
    "remask_limit",
    "remask_threshold",
    "editing_limit",
    "editing_threshold",
)
"""Options that only some strategies have."""


def _has_option(strategy: Strategy, name: str) -> bool:
    if name in ("remask_limit", "remask_threshold"):
        return strategy.remask is not None
    if name in ("editing_limit", "editing_threshold"):
        return strategy.edit is not None
    if name == "unmask_first_masked":
        return strategy.unmasks_first
    return any(option.name == name for option in strategy.options)


def _check_own_options(options: Options, strategy: Strategy) -> None:
    """Reject options of other strategies."""
    for name in _OF_SOME_STRATEGIES:
        value = options[name]
        if value is not None and value is not False and not _has_option(strategy, name):
            having = [each.name for each in STRATEGIES.values() if _has_option(each, name)]
            raise BadInputError(
                f"cannot combine {name} {shown(value)} with strategy {strategy.name!r}",
                expected=f"strategy {' or '.join(having)} with this option",
                remedy=f"remove {name}, or use strategy {having[0]}",
            )
    own = [option.name for option in strategy.options]
    for name in options["strategy_options"] or ():
        twice = name in OWN_OPTIONS and options[name] is not None
        if name not in own or twice:
            raise BadInputError(
                f"strategy_options with {shown(name)}, "
                + ("which is also given as an option" if twice else f"unknown to strategy {strategy.name!r}"),
                expected="one value" if twice else "one of " + ", ".join(own) if own else "no options of this strategy",
                remedy=f"remove {shown(name)} from strategy_options",
            )


def _check_first_masked(options: Options) -> None:
    """Reject unmask_first_masked in reference mode, since the published loop has no such rule."""
    if options["unmask_first_masked"] and options["reference"]:
        raise BadInputError(
            "cannot use unmask_first_masked in reference mode",
            expected="one of the two, since the published loop has no such rule",
            remedy="remove one of the two",
        )


def _check_cache(options: Options, strategy: Strategy) -> None:
    """Reject caches, sub-blocks and block_steps that the strategy, alignment or window does not support.

    Caches other than "blocks" need a strategy that unmasks one block at a time.
    """
    wrong = None
    cache = options["cache"]
    if cache != "blocks" and strategy.pipelined:
        wrong = (
            f"cannot combine cache {cache!r} with strategy {strategy.name!r}",
            "a strategy with one block at a time, e.g. threshold",
        )
    elif cache != "none" and strategy.whole:
        wrong = (
            f"cannot combine cache {cache!r} with strategy {strategy.name!r}",
            "cache none, since every step computes every row",
        )
    elif options["sub_block"] is not None and strategy.whole:
        wrong = (
            f"cannot combine sub_block {options['sub_block']} with strategy {strategy.name!r}",
            "no sub_block, since the whole answer is one block",
        )
    elif options["block_steps"] is not None and not strategy.block_steps:
        wrong = (
            f"cannot combine block_steps with strategy {strategy.name!r}",
            "strategy threshold, vanilla or sequential",
        )
    elif cache in WHOLE_CACHES and (options["alignment"], options["window"]) != ("prompt", "full"):
        what = f"strategy {strategy.name!r}" if strategy.whole else f"cache {cache!r}"
        wrong = (
            f"cannot combine {what} with alignment {options['alignment']!r} and window {options['window']!r}",
            "alignment prompt and window full, since this loop attends to the whole answer",
        )
    elif cache == "sub_block" and options["sub_block"] is None:
        wrong = "cache 'sub_block' without the option sub_block", "both, e.g. sub_block 8"
    if wrong is not None:
        raise BadInputError(wrong[0], expected=wrong[1], remedy="change one of the two options")


def _remasks(options: Options, strategy: Strategy) -> bool:
    """Return True if unmasked tokens may be remasked, on request or by the strategy's default."""
    return options["remask_threshold"] is not None or strategy.remask_threshold > 0


def _check_remasking(options: Options, strategy: Strategy) -> None:
    """Reject remasking in loops without shadow rows, whose unmasked tokens are final."""
    if not _remasks(options, strategy):
        if options["remask_limit"] is not None:
            raise BadInputError(
                f"remask_limit {options['remask_limit']} without remask_threshold",
                expected="both, or neither",
                remedy="set remask_threshold, e.g. 0.5",
            )
        return
    what = "remask_threshold" if options["remask_threshold"] is not None else f"strategy {strategy.name!r}"
    for name, wrong in (("reference", True), ("alignment", "sliding"), ("cache", "sub_block")):
        if options[name] == wrong:
            raise BadInputError(
                f"cannot combine {what} with {name} {wrong!r}",
                expected="a loop that can remask tokens of unfinished blocks",
                remedy="change one of the two options",
            )


def _check_editing(options: Options, strategy: Strategy) -> None:
    """Reject editing with remasking, and in loops whose unmasked tokens are final."""
    if options["editing_threshold"] is None and options["editing_limit"] is not None:
        raise BadInputError(
            f"editing_limit {options['editing_limit']} without editing_threshold",
            expected="both, or neither",
            remedy="set editing_threshold, e.g. 0.9",
        )
    if not edits(options):
        return
    wrong = None
    if options["remask_threshold"]:
        wrong = "remask_threshold", "one of the two, since both correct unmasked tokens"
    elif options["alignment"] == "sliding":
        wrong = "alignment 'sliding'", "fixed blocks, since a sliding block commits rows in nearly every round"
    elif options["cache"] == "sub_block":
        wrong = "cache 'sub_block'", "another cache, since this one keeps rows of unfinished blocks"
    elif options["reference"] and (strategy.name, options["alignment"]) != ("threshold", "absolute"):
        wrong = (
            f"strategy {strategy.name!r} and alignment {options['alignment']!r} in reference mode",
            "strategy threshold and alignment absolute, as in LLaDA2.1's published loop",
        )
    if wrong is not None:
        raise BadInputError(
            f"cannot combine editing_threshold with {wrong[0]}",
            expected=wrong[1],
            remedy="remove editing_threshold, or change the other option",
        )


def _check_early_stop(options: Options) -> None:
    """Reject eos_early_stop outside the published loops of LLaDA2."""
    if options["eos_early_stop"] and not (options["reference"] and options["alignment"] == "absolute"):
        raise BadInputError(
            "cannot use eos_early_stop outside reference mode with alignment absolute",
            expected="no eos_early_stop, since the default mode always stops at an end of text",
            remedy="remove eos_early_stop",
        )


def _check_sliding(options: Options) -> None:
    """Reject options that a sliding block does not support, and options of sliding blocks for other alignments."""
    if options["alignment"] != "sliding":
        own = {
            "entropy_threshold": options["entropy_threshold"],
            "distance_penalty": options["distance_penalty"],
            "window": "causal" if options["window"] == "causal" else None,
        }
        given = [f"{name} {value!r}" for name, value in own.items() if value is not None]
        if given:
            raise BadInputError(
                f"cannot combine {given[0]} with alignment {options['alignment']!r}",
                expected="alignment 'sliding' with this option",
                remedy="remove it, or use a bundle of a model with sliding blocks",
            )
        return
    for name, allowed in (
        ("window", "causal"),
        ("confidence", "neg_entropy"),
        ("cache", "blocks"),
        ("sub_block", None),
        ("block_steps", None),
        ("reference", False),
    ):
        if options[name] != allowed:
            raise BadInputError(
                f"cannot combine {name} {options[name]!r} with alignment 'sliding'",
                expected=f"{name} {allowed!r}",
                remedy="change one of the two options",
            )


def _check_speculative(options: Options, strategy: Strategy) -> None:
    """Reject speculative if drafts of the next steps cannot be verified in the anchor's forward."""
    if not options["speculative"]:
        return
    conflicts = (
        (
            not strategy.from_one_branch,
            f"strategy {strategy.name!r}",
            "a strategy whose steps depend on one branch only",
            "use another strategy, e.g. d2f, threshold or vanilla",
        ),
        (
            bool(grammars_given(options)),
            "a grammar",
            "no grammar, since a draft's allowed tokens are unknown",
            "remove one of the two",
        ),
        (
            options["remask_threshold"] is not None,
            "remask_threshold",
            "no remasking, since drafts build on unmasked tokens",
            "remove one of the two",
        ),
        (
            options["reference"],
            "reference mode",
            "one of the two, since the published loops have no drafts",
            "remove one of the two",
        ),
        (
            options["alignment"] == "sliding",
            "alignment 'sliding'",
            "fixed blocks, since a sliding block commits rows in nearly every round",
            "remove speculative",
        ),
        (
            options["branches"] == "auto",
            "branches 'auto'",
            "a number of branches, since the yield of drafts is not estimated",
            "set a number",
        ),
    )
    for is_given, other, expected, remedy in conflicts:
        if is_given:
            raise BadInputError(f"cannot combine speculative with {other}", expected=expected, remedy=remedy)


def _check_grammar(options: Options, strategy: Strategy) -> None:
    """Reject two grammars, and a grammar with options that it does not support."""
    given = grammars_given(options)
    wrong = None
    grammars = [name for name in given if name in GRAMMARS]
    if len(grammars) > 1:
        wrong = "more than one grammar: " + " and ".join(grammars), "at most one grammar"
    elif given and options["reference"]:
        wrong = (
            f"cannot use {given[0]} in reference mode",
            "one of the two, since the published loop has no grammars",
        )
    elif given and _remasks(options, strategy):
        wrong = f"cannot combine {given[0]} with remasking", "one of the two, since a grammar reads each token once"
    elif given and not options["stop_at_eos"]:
        wrong = (
            f"cannot combine {given[0]} with stop_at_eos off",
            "stop_at_eos on, since the grammar decides where the answer ends",
        )
    if wrong is not None:
        raise BadInputError(wrong[0], expected=wrong[1], remedy="remove one of the two")


def _check_choices(options: Options) -> None:
    """Reject choices with a grammar, which restricts the answer too, and in reference mode."""
    if options["choices"] is None:
        return
    for other in (*grammars_given(options), *(["reference"] if options["reference"] else [])):
        raise BadInputError(
            f"cannot combine choices with {other}",
            expected="one of the two, since choices are scored instead of decoded",
            remedy="remove one of the two",
        )


def _check_anytime(options: Options) -> None:
    """Reject anytime where the last forward's best tokens are no answer: a grammar has not read them."""
    if not options["anytime"]:
        return
    for other in (*grammars_given(options), *(name for name in ("choices", "reference") if options[name])):
        raise BadInputError(
            f"cannot combine anytime with {other}",
            expected="one of the two, since a draft need not satisfy a grammar, and choices and the published loops "
            "have no drafts",
            remedy="remove one of the two",
        )


def _check_branches(options: Options, strategy: Strategy) -> None:
    """Reject several branches without lookahead, and branches="auto" in reference mode."""
    branches = options["branches"]
    if branches not in (None, 1) and not strategy.looks_ahead and not options["speculative"]:
        raise BadInputError(
            f"cannot combine branches {branches} with strategy {strategy.name!r}",
            expected=f"one branch, since {strategy.name} does not look ahead",
            remedy="remove branches, use strategy lopa, or set speculative",
        )
    if branches == "auto" and options["reference"]:
        raise BadInputError(
            "cannot use branches 'auto' in reference mode",
            expected="a number of branches, since the published loop has a fixed one",
            remedy="set branches to a number",
        )
