"""Checks of options that do not go together. Each raises BadInputError.

They are given every option by name: its value, or None where neither a request nor a default gives one.
"""

from collections.abc import Mapping
from typing import Any

from lopa.runtime.checked_values import check_int, shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.value_checks import OWN_OPTIONS
from lopa.runtime.plan import GRAMMARS, WHOLE_CACHES
from lopa.runtime.strategy import STRATEGIES, Strategy

Options = Mapping[str, Any]


def check_together(options: Options, strategy: Strategy) -> None:
    """Raise BadInputError for options that do not go together."""
    _check_parts_of_blocks(options)
    _check_own_options(options, strategy)
    _check_frontier(options)
    _check_cache(options, strategy)
    _check_sliding(options)
    _check_speculative(options, strategy)
    _check_remasking(options, strategy)
    _check_branches(options, strategy)
    _check_grammar(options, strategy)


def grammars_given(options: Options) -> list[str]:
    """Return the names of the options that constrain the answer's form."""
    return [name for name in GRAMMARS if options[name] is not None]


def _check_parts_of_blocks(options: Options) -> None:
    for name in ("sub_block", "block_steps"):
        if options[name] is not None:
            check_int(name, options[name], min=1, max=options["block_size"])


_NOT_OF_ALL = (*OWN_OPTIONS, "unmask_first_masked", "remask_limit", "remask_threshold")
"""Options that not every strategy has."""


def _has_option(strategy: Strategy, name: str) -> bool:
    if name in ("remask_limit", "remask_threshold"):
        return strategy.remask is not None
    if name == "unmask_first_masked":
        return strategy.unmasks_first
    return any(option.name == name for option in strategy.options)


def _check_own_options(options: Options, strategy: Strategy) -> None:
    """Refuse options of other strategies."""
    for name in _NOT_OF_ALL:
        value = options[name]
        if value is not None and value is not False and not _has_option(strategy, name):
            having = [each.name for each in STRATEGIES.values() if _has_option(each, name)]
            raise BadInputError(
                f"{name} {shown(value)} with strategy {strategy.name!r}",
                expected=f"strategy {' or '.join(having)}, which alone {'has' if len(having) == 1 else 'have'} it",
                remedy=f"leave {name} out, or use strategy {having[0]}",
            )
    own = [option.name for option in strategy.options]
    for name in options["strategy_options"] or ():
        twice = name in OWN_OPTIONS and options[name] is not None
        if name not in own or twice:
            raise BadInputError(
                f"strategy_options with {shown(name)}, "
                + ("which is given as an option too" if twice else f"which strategy {strategy.name!r} does not have"),
                expected="one value" if twice else ", ".join(own) or "none: this strategy has no options of its own",
                remedy=f"leave {shown(name)} out",
            )


def _check_frontier(options: Options) -> None:
    """Refuse unmask_first_masked in reference mode, which unmasks what the published loop does."""
    if options["unmask_first_masked"] and options["reference"]:
        raise BadInputError(
            "unmask_first_masked in reference mode",
            expected="the default mode: the published loop unmasks no position because of its place",
            remedy="leave one of the two out",
        )


def _check_cache(options: Options, strategy: Strategy) -> None:
    """Refuse what no loop does: caches other than "blocks" belong to one block at a time."""
    wrong = None
    cache = options["cache"]
    if cache != "blocks" and strategy.pipelined:
        wrong = f"cache {cache!r} with strategy {strategy.name!r}", "one block at a time, as threshold decodes"
    elif cache != "none" and strategy.whole:
        wrong = f"cache {cache!r} with strategy {strategy.name!r}", "cache none: every row in every step"
    elif options["sub_block"] is not None and strategy.whole:
        wrong = f"sub_block {options['sub_block']} with strategy {strategy.name!r}", "the whole answer as one block"
    elif options["block_steps"] is not None and not strategy.block_steps:
        wrong = f"block_steps with strategy {strategy.name!r}", "threshold, vanilla or sequential"
    elif cache in WHOLE_CACHES and (options["alignment"], options["window"]) != ("prompt", "full"):
        what = f"strategy {strategy.name!r}" if strategy.whole else f"cache {cache!r}"
        wrong = (
            f"{what} with alignment {options['alignment']!r} and window {options['window']!r}",
            "alignment prompt and window full: finished blocks are final where rows see nothing behind them",
        )
    elif cache == "sub_block" and options["sub_block"] is None:
        wrong = "cache 'sub_block' without sub-blocks", "sub_block, e.g. 8"
    if wrong is not None:
        raise BadInputError(wrong[0], expected=wrong[1], remedy="change one of the two options")


def _remasks(options: Options, strategy: Strategy) -> bool:
    """Return whether unmasked tokens may be remasked: on request, or because the strategy does so by itself."""
    return options["remask_threshold"] is not None or strategy.remask_threshold > 0


def _check_remasking(options: Options, strategy: Strategy) -> None:
    """Refuse what has no shadow rows: loops that unmask for good, and rows that leave the window before their block."""
    if not _remasks(options, strategy):
        if options["remask_limit"] is not None:
            raise BadInputError(
                f"remask_limit {options['remask_limit']} without remask_threshold",
                expected="both, or neither",
                remedy="give remask_threshold, e.g. 0.5",
            )
        return
    what = "remask_threshold" if options["remask_threshold"] is not None else f"strategy {strategy.name!r}"
    for name, wrong in (("reference", True), ("alignment", "sliding"), ("cache", "sub_block")):
        if options[name] == wrong:
            raise BadInputError(
                f"{what} with {name} {wrong!r}",
                expected="a loop in which tokens can be remasked until their block is finished",
                remedy="change one of the two options",
            )


def _check_sliding(options: Options) -> None:
    """Refuse what one sliding block does not have, and its own options elsewhere."""
    if options["alignment"] != "sliding":
        own = {
            "entropy_threshold": options["entropy_threshold"],
            "distance_penalty": options["distance_penalty"],
            "window": "causal" if options["window"] == "causal" else None,
        }
        given = [f"{name} {value!r}" for name, value in own.items() if value is not None]
        if given:
            raise BadInputError(
                f"{given[0]} with alignment {options['alignment']!r}",
                expected="alignment sliding, which alone has it",
                remedy="leave it out, or use a bundle of a model that is decoded so",
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
                f"{name} {options[name]!r} with alignment 'sliding'",
                expected=f"{name} {allowed!r}",
                remedy="change one of the two options",
            )


def _check_speculative(options: Options, strategy: Strategy) -> None:
    """Refuse speculative where drafts of the next steps cannot be verified beside the anchor."""
    if not options["speculative"]:
        return
    refused = (
        (
            not strategy.from_one_branch,
            f"strategy {strategy.name!r}",
            "a strategy whose next step follows from one branch",
            "name another strategy, e.g. d2f, threshold or vanilla",
        ),
        (
            bool(grammars_given(options)),
            "a grammar",
            "an answer of any text: what a grammar allows behind a draft is not known",
            "leave one of the two out",
        ),
        (
            options["remask_threshold"] is not None,
            "remask_threshold",
            "unmasked tokens that stay: drafts build on them",
            "leave one of the two out",
        ),
        (
            options["reference"],
            "reference mode",
            "the default mode, since the published loops verify nothing twice",
            "leave one of the two out",
        ),
        (
            options["alignment"] == "sliding",
            "alignment 'sliding'",
            "blocks that stay where they are: one that slides commits rows in nearly every round",
            "leave speculative out",
        ),
        (
            options["branches"] == "auto",
            "branches 'auto'",
            "a number of branches, since what a draft brings is not estimated",
            "give a number",
        ),
    )
    for is_so, other, expected, remedy in refused:
        if is_so:
            raise BadInputError(f"speculative with {other}", expected=expected, remedy=remedy)


def _check_grammar(options: Options, strategy: Strategy) -> None:
    """Refuse two grammars, and what an answer that satisfies one cannot go with."""
    given = grammars_given(options)
    wrong = None
    if len(given) > 1:
        wrong = " and ".join(given), "one of them: an answer satisfies one grammar"
    elif given and options["reference"]:
        wrong = f"{given[0]} in reference mode", "the default mode: the published loop knows no grammar"
    elif given and _remasks(options, strategy):
        wrong = f"{given[0]} with remasked tokens", "tokens that stay, since a grammar reads each once"
    elif given and not options["stop_at_eos"]:
        wrong = f"{given[0]} with stop_at_eos off", "stop_at_eos on: the grammar says where the answer ends"
    if wrong is not None:
        raise BadInputError(wrong[0], expected=wrong[1], remedy="leave one of the two out")


def _check_branches(options: Options, strategy: Strategy) -> None:
    """Refuse several branches where nothing looks ahead, and auto where the published loop has a fixed number."""
    branches = options["branches"]
    if branches not in (None, 1) and not strategy.looks_ahead and not options["speculative"]:
        raise BadInputError(
            f"branches {branches} with strategy {strategy.name!r}",
            expected=f"one branch, since {strategy.name} does not look ahead",
            remedy="leave branches out, use strategy lopa, or ask for speculative",
        )
    if branches == "auto" and options["reference"]:
        raise BadInputError(
            "branches 'auto' in reference mode",
            expected="a number of branches, since the published loop has a fixed one",
            remedy="give a number",
        )
