"""Checks of options that do not go together. Each raises BadInputError, or returns the value it is about."""

from typing import Literal

from lopa.runtime.checked_values import shown, whole_number
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.options import Options
from lopa.runtime.generation_config.traits import OWN_OPTIONS, TRAITS, strategies_with
from lopa.runtime.generation_config.words import GRAMMARS, MOST_BRANCHES, WHOLE_CACHES


def check_own_options(options: Options) -> None:
    """Refuse options of other strategies."""
    for name in OWN_OPTIONS:
        value, having = getattr(options, name), strategies_with(name)
        if value is not None and value is not False and options.strategy not in having:
            raise BadInputError(
                f"{name} {shown(value)} with strategy {options.strategy!r}",
                expected=f"strategy {' or '.join(having)}, which alone {'has' if len(having) == 1 else 'have'} it",
                remedy=f"leave {name} out, or use strategy {having[0]}",
            )


def check_frontier(options: Options) -> None:
    """Refuse it in published mode, which decides what the published loop does."""
    if options.decide_frontier and options.published:
        raise BadInputError(
            "decide_frontier in published mode",
            expected="the default mode: the published loop decides no position because of its place",
            remedy="leave one of the two out",
        )


def check_cache(options: Options) -> None:
    """Refuse what no loop does: caches other than "blocks" belong to one block at a time."""
    wrong = None
    traits = TRAITS[options.strategy]
    if options.cache != "blocks" and traits.pipelined:
        wrong = (
            f"cache {options.cache!r} with strategy {options.strategy!r}",
            "one block at a time, as threshold decodes",
        )
    elif options.cache != "none" and traits.whole:
        wrong = f"cache {options.cache!r} with strategy {options.strategy!r}", "cache none: every row in every step"
    elif options.sub_block is not None and traits.whole:
        wrong = f"sub_block {options.sub_block} with strategy {options.strategy!r}", "the whole answer as one block"
    elif options.block_steps is not None and not traits.block_steps:
        wrong = f"block_steps with strategy {options.strategy!r}", "threshold, vanilla or sequential"
    elif options.cache in WHOLE_CACHES and (options.alignment, options.window) != ("prompt", "full"):
        asked = f"strategy {options.strategy!r}" if traits.whole else f"cache {options.cache!r}"
        wrong = (
            f"{asked} with alignment {options.alignment!r} and window {options.window!r}",
            "alignment prompt and window full: finished blocks are final where rows see nothing behind them",
        )
    elif options.cache == "sub_block" and options.sub_block is None:
        wrong = "cache 'sub_block' without sub-blocks", "sub_block, e.g. 8"
    if wrong is not None:
        raise BadInputError(wrong[0], expected=wrong[1], remedy="change one of the two options")


def grammars_given(options: Options) -> list[str]:
    """The names of the options that say what the answer is to satisfy."""
    return [name for name in GRAMMARS if getattr(options, name) is not None]


def takes_back(options: Options) -> bool:
    """Whether decided tokens may be doubted: it is asked for, or the strategy does so by itself."""
    return options.take_back_threshold is not None or TRAITS[options.strategy].doubt_threshold is not None


def check_take_back(options: Options) -> None:
    """Refuse what has no shadow rows: loops that decide for good, and rows that leave the window before their block."""
    if not takes_back(options):
        if options.take_back_limit is not None:
            raise BadInputError(
                f"take_back_limit {options.take_back_limit} without take_back_threshold",
                expected="both, or neither",
                remedy="give take_back_threshold, e.g. 0.5",
            )
        return
    taking = "take_back_threshold" if options.take_back_threshold is not None else f"strategy {options.strategy!r}"
    for name, wrong in (("published", True), ("alignment", "sliding"), ("cache", "sub_block")):
        if getattr(options, name) == wrong:
            raise BadInputError(
                f"{taking} with {name} {wrong!r}",
                expected="a loop in which what is decided can be taken back until its block is finished",
                remedy="change one of the two options",
            )


def check_sliding(options: Options) -> None:
    """Refuse what one sliding block does not have, and its own options elsewhere."""
    if options.alignment != "sliding":
        own = {
            "entropy_threshold": options.entropy_threshold,
            "distance_penalty": options.distance_penalty,
            "window": "causal" if options.window == "causal" else None,
        }
        given = [f"{name} {value!r}" for name, value in own.items() if value is not None]
        if given:
            raise BadInputError(
                f"{given[0]} with alignment {options.alignment!r}",
                expected="alignment sliding, which alone has it",
                remedy="leave it out, or use a bundle of a model that is decoded so",
            )
        return
    allowed: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("window", ("causal",)),
        ("confidence", ("neg_entropy",)),
        ("cache", ("blocks",)),
        ("sub_block", (None,)),
        ("block_steps", (None,)),
        ("published", (False,)),
    )
    for name, values in allowed:
        if getattr(options, name) not in values:
            raise BadInputError(
                f"{name} {getattr(options, name)!r} with alignment 'sliding'",
                expected=f"{name} " + " or ".join(map(repr, values)),
                remedy="change one of the two options",
            )


def check_lossless(options: Options) -> None:
    """Refuse it where guesses of the next steps cannot be verified beside the anchor."""
    if not options.lossless:
        return
    refused = (
        (
            not TRAITS[options.strategy].has_next_step,
            f"strategy {options.strategy!r}",
            "a strategy whose next step follows from one branch",
            "name another strategy, e.g. d2f, threshold or vanilla",
        ),
        (
            bool(grammars_given(options)),
            "a grammar",
            "an answer of any text: what a grammar allows behind a guess is not known",
            "leave one of the two out",
        ),
        (
            options.take_back_threshold is not None,
            "take_back_threshold",
            "decided tokens that stay: a guess stands on them",
            "leave one of the two out",
        ),
        (
            options.published,
            "published mode",
            "the default mode, since the published loops verify nothing twice",
            "leave one of the two out",
        ),
        (
            options.alignment == "sliding",
            "alignment 'sliding'",
            "blocks that stay where they are: one that slides commits rows in nearly every round",
            "leave lossless out",
        ),
        (
            isinstance(options.branches, str) and options.branches == "auto",
            "branches 'auto'",
            "a number of branches, since what a guess brings is not estimated",
            "give a number",
        ),
    )
    for is_so, other, expected, remedy in refused:
        if is_so:
            raise BadInputError(f"lossless with {other}", expected=expected, remedy=remedy)


def check_grammar(options: Options) -> None:
    """Refuse two grammars, and what an answer that satisfies one cannot go with."""
    given = grammars_given(options)
    wrong = None
    if len(given) > 1:
        wrong = " and ".join(given), "one of them: an answer satisfies one grammar"
    elif given and options.published:
        wrong = f"{given[0]} in published mode", "the default mode: the published loop knows no grammar"
    elif given and takes_back(options):
        wrong = f"{given[0]} with tokens taken back by doubt", "what the grammar has read, which stays"
    elif given and not options.stop_at_eos:
        wrong = f"{given[0]} with stop_at_eos off", "stop_at_eos on: the grammar says where the answer ends"
    if wrong is not None:
        raise BadInputError(wrong[0], expected=wrong[1], remedy="leave one of the two out")


def checked_branches(options: Options) -> int | Literal["auto"] | None:
    """The number of branches that was asked for, as a plain value."""
    branches = options.branches
    if branches is None:
        return None
    auto = isinstance(branches, str) and branches == "auto"
    number = None if auto else whole_number("branches", branches, least=1, most=MOST_BRANCHES)
    if number != 1 and not TRAITS[options.strategy].looks_ahead and not options.lossless:
        raise BadInputError(
            f"branches {branches} with strategy {options.strategy!r}",
            expected=f"one branch, since {options.strategy} does not look ahead",
            remedy="leave branches out, use strategy lopa, or ask for lossless",
        )
    if auto and options.published:
        raise BadInputError(
            "branches 'auto' in published mode",
            expected="a number of branches, since the published loop has a fixed one",
            remedy="give a number",
        )
    return "auto" if number is None else number
