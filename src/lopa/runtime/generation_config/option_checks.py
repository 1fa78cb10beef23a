"""Checks of combinations of options. An option is None if neither a request nor a default sets it."""

from collections.abc import Iterator, Mapping
from typing import Any

from lopa.runtime.checked_values import check_int, shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.config import OPTIONS, OWN_OPTIONS, did_you_mean
from lopa.runtime.options import CONSTRAINTS, GRAMMARS, WHOLE_CACHES
from lopa.runtime.options.option import names_of_changed_logits
from lopa.runtime.strategy import STRATEGIES, Strategy, strategy_from_name
from lopa.runtime.strategy.installed import strategy_with_option

Options = Mapping[str, Any]
Conflict = tuple[str, str, str]
"""The texts of a BadInputError: received, expected and remedy."""
_CHANGE, _REMOVE = "change one of the two options", "remove one of the two"


def check_together(options: Options, strategy: Strategy) -> None:
    """Raise BadInputError for an invalid combination of options."""
    for name in ("sub_block", "block_steps"):
        if options[name] is not None:
            check_int(name, options[name], min=1, max=options["block_size"])
    for conflicts in (
        _with_strategy,
        _with_reference,
        _with_cache,
        _with_alignment,
        _with_speculative,
        _with_remasking,
        _with_editing,
        _with_branches,
        _with_grammar,
        _with_choices_and_anytime,
        _with_canvas,
    ):
        for received, expected, remedy in conflicts(options, strategy):
            raise BadInputError(received, expected=expected, remedy=remedy)


def grammars_given(options: Options) -> list[str]:
    """Return the names of the given options whose answers are read by a grammar."""
    return [name for name in CONSTRAINTS if options[name] is not None]


def edits(options: Options) -> bool:
    """Return True if unmasked tokens may be replaced. In reference mode a threshold of 1 counts too."""
    threshold = options["editing_threshold"]
    return threshold is not None and (threshold < 1 or options["reference"])


MAYBE_UNREAD = frozenset(name for strategy in STRATEGIES.values() for name in strategy.unread).union(
    ("entropy_threshold", "distance_penalty", "alg_temp", "sub_block")
)
"""Options that have no effect with some strategy or beside some option."""


def check_effects(given: Options, resolved: Options) -> None:
    """Raise BadInputError for an option in `given` that has no effect with the strategy of the `resolved` options.

    The command line checks this. Programs and clients may give such options, as configurations of published code state
    all of theirs and comparisons use the same options for every strategy.
    """
    for name, reader, better in _without_effect(resolved, strategy_from_name(resolved["strategy"])):
        if given.get(name) is not None and not (name == "alg_temp" and not given[name]):
            raise BadInputError(
                f"cannot combine {name} {shown(given[name])} with {reader}, which does not read it",
                expected=f"no {name}, or another {reader.split()[0]}",
                remedy=f"remove {name}, or use e.g. {better}",
            )


def _without_effect(options: Options, strategy: Strategy) -> Iterator[tuple[str, str, str]]:
    """Yield the options without effect, each with the strategy, alg or alignment that ignores it, and what to use."""
    chosen = f"strategy {strategy.name!r}"
    if options["alignment"] == "sliding" and strategy.name in STRATEGIES:
        for name in ("skip_threshold", "block_add_threshold", "decoded_token_threshold"):
            yield name, "alignment 'sliding'", "entropy_threshold"
        for role, name in (("skip_threshold", "entropy_threshold"), ("confidence", "distance_penalty")):
            if role in strategy.without or (strategy.name, name) == ("eb", "entropy_threshold"):
                yield name, chosen, "strategy d2f"
    for name in strategy.unread:
        having = [each.name for each in STRATEGIES.values() if name not in each.unread]
        yield name, chosen, f"strategy {having[0]}"
    if strategy.name == "dream" and options["alg"] == "origin":
        yield "alg_temp", "alg 'origin'", "alg entropy"
    by_sub_block = options["cache"] == "sub_block" or options["block_steps"] or options["anytime"] or edits(options)
    if strategy.name == "sequential" and not by_sub_block:  # from left to right either way
        yield "sub_block", chosen, "strategy threshold"


_STAGES = ("unmask_first_masked", "remask_limit", "remask_threshold", "editing_limit", "editing_threshold")
"""Options of stages that only some strategies have."""


def _has_option(strategy: Strategy, name: str) -> bool:
    if name in ("remask_limit", "remask_threshold"):
        return strategy.remask is not None
    if name in ("editing_limit", "editing_threshold"):
        return strategy.edit is not None
    if name == "unmask_first_masked":
        return strategy.unmasks_first
    return any(option.name == name for option in strategy.options)


def reads_option(strategy: Strategy, name: str) -> bool:
    """Return True if decodes with `strategy` read the option `name`, which may be one of its own."""
    is_common = name in OPTIONS and name not in (*OWN_OPTIONS, *_STAGES)
    return name not in strategy.unread if is_common else _has_option(strategy, name)


def _with_strategy(options: Options, strategy: Strategy) -> Iterator[Conflict]:
    """Yield options that only other strategies have."""
    for name in (*OWN_OPTIONS, *_STAGES):
        value = options[name]
        if value is not None and value is not False and not _has_option(strategy, name):
            having = [each.name for each in STRATEGIES.values() if _has_option(each, name)]
            yield (
                f"cannot combine {name} {shown(value)} with strategy {strategy.name!r}",
                f"strategy {' or '.join(having)} with this option",
                f"remove {name}, or use strategy {having[0]}",
            )
    own = [option.name for option in strategy.options]
    for name in options["strategy_options"] or ():
        remedy = f"remove {shown(name)} from strategy_options"
        if name not in own:
            expected = "one of " + ", ".join(own) if own else "no options of this strategy"
            received = f"strategy_options with {shown(name)}, unknown to strategy {strategy.name!r}"
            remedy = f"use strategy {owner}, or {remedy}" if (owner := strategy_with_option(name)) else remedy
            yield received, expected, did_you_mean(name, own, otherwise=remedy)
        elif name in OWN_OPTIONS and options[name] is not None:
            yield f"strategy_options with {shown(name)}, which is also given as an option", "one value", remedy


_NOT_OF_CANVAS = ("min_p", "logprobs", "top_logprobs", "sub_block", "block_steps", "choices")
"""Options without an effect on canvases, or not supported there."""


def _with_canvas(options: Options, strategy: Strategy) -> Iterator[Conflict]:
    """Yield options that canvases do not have, whose tokens change until they end."""
    if not strategy.canvas:
        return
    given = [name for name in _NOT_OF_CANVAS if options[name]]
    given += [name for name in ("top_k", "top_p") if options[name] is not None]
    for name in (*given, *names_of_changed_logits(options), *grammars_given(options)):
        yield f"cannot combine {name} with strategy {strategy.name!r}", f"no {name}", f"remove {name}"
    if not options["temperature"]:
        expected = "a temperature above 0, which multiplies those of the steps; 1 changes nothing"
        yield f"cannot combine temperature 0 with strategy {strategy.name!r}", expected, "remove it, or send 1"
    if options["reference"] and options["branches"] not in (None, 1):
        received = f"cannot use {options['branches']} branches in reference mode with strategy {strategy.name!r}"
        yield received, "one of the two, since the published loop has one canvas", _REMOVE
    if options["branches"] == "auto":
        yield "cannot combine branches 'auto' with strategy 'canvas'", "a number of branches", "set a number"
    for name, only in (("alignment", "prompt"), ("attention", "full"), ("cache", "blocks")):
        if options[name] != only:
            yield (
                f"cannot combine {name} {options[name]!r} with strategy {strategy.name!r}",
                f"{name} {only!r}",
                _CHANGE,
            )
    usual = {option.name: option.default for option in strategy.options}
    low, high = (usual[name] if options[name] is None else options[name] for name in ("t_min", "t_max"))
    if low >= high:
        yield f"t_min {low:g} and t_max {high:g}", "a t_min below t_max", "raise t_max, or lower t_min"


def _with_reference(options: Options, strategy: Strategy) -> Iterator[Conflict]:  # noqa: ARG001
    """Yield options that the published loops lack, and their options in the default mode."""
    reference = options["reference"]
    for name in names_of_changed_logits(options) if reference else ():
        expected = "one of the two, since the published loops change no logits"
        yield f"cannot use {name} in reference mode", expected, _REMOVE
    if options["unmask_first_masked"] and reference:
        expected = "one of the two, since the published loop has no such rule"
        yield "cannot use unmask_first_masked in reference mode", expected, _REMOVE
    if options["eos_early_stop"] and not (reference and options["alignment"] == "absolute"):
        yield (
            "cannot use eos_early_stop outside reference mode with alignment absolute",
            "no eos_early_stop, since the default mode always stops at an end of text",
            "remove eos_early_stop",
        )


def _with_cache(options: Options, strategy: Strategy) -> Iterator[Conflict]:
    """Yield caches, sub-blocks and block_steps that the strategy, alignment or attention does not support.

    Caches other than "blocks" need a strategy that unmasks one block at a time.
    """
    cache, alignment, attention = options["cache"], options["alignment"], options["attention"]
    with_cache = f"cannot combine cache {cache!r} with strategy {strategy.name!r}"
    if cache != "blocks" and strategy.pipelined:
        yield with_cache, "a strategy with one block at a time, e.g. threshold", _CHANGE
    if cache != "none" and strategy.whole:
        yield with_cache, "cache none, since every step computes every row", _CHANGE
    if options["sub_block"] is not None and strategy.whole:
        received = f"cannot combine sub_block {options['sub_block']} with strategy {strategy.name!r}"
        yield received, "no sub_block, since the whole answer is one block", _CHANGE
    if options["block_steps"] is not None and not strategy.block_steps:
        received = f"cannot combine block_steps with strategy {strategy.name!r}"
        yield received, "strategy threshold, vanilla or sequential", _CHANGE
    if cache in WHOLE_CACHES and (alignment, attention) != ("prompt", "full"):
        what = f"strategy {strategy.name!r}" if strategy.whole else f"cache {cache!r}"
        received = f"cannot combine {what} with alignment {alignment!r} and attention {attention!r}"
        yield received, "alignment prompt and attention full, since this loop attends to the whole answer", _CHANGE
    if cache == "sub_block" and options["sub_block"] is None:
        yield "cache 'sub_block' without the option sub_block", "both, e.g. sub_block 8", _CHANGE


def _with_alignment(options: Options, strategy: Strategy) -> Iterator[Conflict]:  # noqa: ARG001
    """Yield options that a sliding block does not support, and options of sliding blocks for other alignments."""
    if options["alignment"] == "sliding":
        only = {
            "attention": "causal",
            "confidence": "neg_entropy",
            "cache": "blocks",
            "sub_block": None,
            "block_steps": None,
        }
        for name, allowed in {**only, "reference": False}.items():
            if options[name] != allowed:
                received = f"cannot combine {name} {options[name]!r} with alignment 'sliding'"
                yield received, f"{name} {allowed!r}", _CHANGE
        return
    for name in ("entropy_threshold", "distance_penalty", "attention"):
        value = options[name]
        if value == "causal" if name == "attention" else value is not None:
            yield (
                f"cannot combine {name} {value!r} with alignment {options['alignment']!r}",
                "alignment 'sliding' with this option",
                "remove it, or use a bundle of a model with sliding blocks",
            )


def _with_speculative(options: Options, strategy: Strategy) -> Iterator[Conflict]:
    """Yield options with which drafts of the next steps cannot be verified in the anchor's forward."""
    if not options["speculative"]:
        return
    combined = "cannot combine speculative with "
    if not strategy.from_one_branch:
        expected = "a strategy whose steps depend on one branch only"
        yield f"{combined}strategy {strategy.name!r}", expected, "use another strategy, e.g. d2f, threshold or vanilla"
    if grammars_given(options):
        yield f"{combined}a grammar", "no grammar, since a draft's allowed tokens are unknown", _REMOVE
    if options["remask_threshold"] is not None:
        yield f"{combined}remask_threshold", "no remasking, since drafts build on unmasked tokens", _REMOVE
    if options["reference"]:
        yield f"{combined}reference mode", "one of the two, since the published loops have no drafts", _REMOVE
    if options["alignment"] == "sliding":
        expected = "fixed blocks, since a sliding block commits rows in nearly every round"
        yield f"{combined}alignment 'sliding'", expected, "remove speculative"
    if options["branches"] == "auto":
        expected = "a number of branches, since the yield of drafts is not estimated"
        yield f"{combined}branches 'auto'", expected, "set a number"


def _remasks(options: Options, strategy: Strategy) -> bool:
    """Return True if unmasked tokens may be remasked, on request or by the strategy's default."""
    return options["remask_threshold"] is not None or strategy.remask_threshold > 0


def _with_remasking(options: Options, strategy: Strategy) -> Iterator[Conflict]:
    """Yield loops without shadow rows, whose unmasked tokens are final."""
    if not _remasks(options, strategy):
        if options["remask_limit"] is not None:
            received = f"remask_limit {options['remask_limit']} without remask_threshold"
            yield received, "both, or neither", "set remask_threshold, e.g. 0.5"
        return
    what = "remask_threshold" if options["remask_threshold"] is not None else f"strategy {strategy.name!r}"
    for name, wrong in (("reference", True), ("alignment", "sliding"), ("cache", "sub_block")):
        if options[name] == wrong:
            expected = "a loop that can remask tokens of unfinished blocks"
            yield f"cannot combine {what} with {name} {wrong!r}", expected, _CHANGE


def _with_editing(options: Options, strategy: Strategy) -> Iterator[Conflict]:
    """Yield remasking, and loops whose unmasked tokens are final."""
    if options["editing_threshold"] is None and options["editing_limit"] is not None:
        received = f"editing_limit {options['editing_limit']} without editing_threshold"
        yield received, "both, or neither", "set editing_threshold, e.g. 0.9"
    if not edits(options):
        return
    combined, remedy = "cannot combine editing_threshold with ", "remove editing_threshold, or change the other option"
    if options["remask_threshold"]:
        yield f"{combined}remask_threshold", "one of the two, since both correct unmasked tokens", remedy
    if options["alignment"] == "sliding":
        expected = "fixed blocks, since a sliding block commits rows in nearly every round"
        yield f"{combined}alignment 'sliding'", expected, remedy
    if options["cache"] == "sub_block":
        yield f"{combined}cache 'sub_block'", "another cache, since this one keeps rows of unfinished blocks", remedy
    if options["reference"] and (strategy.name, options["alignment"]) != ("threshold", "absolute"):
        received = f"{combined}strategy {strategy.name!r} and alignment {options['alignment']!r} in reference mode"
        yield received, "strategy threshold and alignment absolute, as in LLaDA2.1's published loop", remedy


def _with_branches(options: Options, strategy: Strategy) -> Iterator[Conflict]:
    """Yield several branches without lookahead, and branches="auto" in reference mode."""
    branches = options["branches"]
    if branches not in (None, 1) and not strategy.looks_ahead and not options["speculative"]:
        yield (
            f"cannot combine branches {branches} with strategy {strategy.name!r}",
            f"one branch, since {strategy.name} does not look ahead",
            "remove branches, use strategy lopa, or set speculative",
        )
    if branches == "auto" and options["reference"]:
        expected = "a number of branches, since the published loop has a fixed one"
        yield "cannot use branches 'auto' in reference mode", expected, "set branches to a number"


def _with_grammar(options: Options, strategy: Strategy) -> Iterator[Conflict]:
    """Yield two grammars, and options that a grammar does not support."""
    given = grammars_given(options)
    grammars = [name for name in given if name in GRAMMARS]
    if len(grammars) > 1:
        yield "more than one grammar: " + " and ".join(grammars), "at most one grammar", _REMOVE
    for name in given:
        if options["reference"]:
            expected = "one of the two, since the published loop has no grammars"
            yield f"cannot use {name} in reference mode", expected, _REMOVE
        if _remasks(options, strategy):
            yield (
                f"cannot combine {name} with remasking",
                "one of the two, since a grammar reads each token once",
                _REMOVE,
            )
        if not options["stop_at_eos"]:
            expected = "stop_at_eos on, since the grammar decides where the answer ends"
            yield f"cannot combine {name} with stop_at_eos off", expected, _REMOVE


def _with_choices_and_anytime(options: Options, strategy: Strategy) -> Iterator[Conflict]:  # noqa: ARG001
    """Yield options with choices, which are scored, and options that need a plain answer."""
    others = [*grammars_given(options), *(["reference"] if options["reference"] else [])]
    choices = options["choices"] is not None
    decoded_otherwise = [*others, *(["choices"] if choices else [])]
    for other in decoded_otherwise if options["stop_token_ids"] else ():
        expected = "one of the two, since a grammar, a choice and published loops end by the model's own tokens"
        yield f"cannot combine stop_token_ids with {other}", expected, _REMOVE
    for other in [*others, *names_of_changed_logits(options)] if choices else ():
        expected = "one of the two, since choices are scored instead of decoded"
        yield f"cannot combine choices with {other}", expected, _REMOVE
    for other in decoded_otherwise if options["anytime"] else ():
        yield (
            f"cannot combine anytime with {other}",
            "one of the two, since a draft need not satisfy a grammar, and choices and published loops have no drafts",
            _REMOVE,
        )
