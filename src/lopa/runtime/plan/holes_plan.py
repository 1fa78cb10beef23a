"""The decoding plan of a text with holes."""

import math
from collections.abc import Sequence
from dataclasses import replace

from lopa.runtime.errors import BadInputError
from lopa.runtime.plan.plan import DecodingPlan


def plan_for_holes(
    plan: DecodingPlan,
    holes: Sequence[tuple[int, int]],
    *,
    block_size: int | None,
    lengths: int = 1,
    grows: bool = False,
) -> DecodingPlan:
    """Return `plan` for a text whose `holes`, positions from a start to an exclusive end, are filled.

    All holes are one block, unless the request sets `block_size`. Nothing is cached by blocks, because every row
    attends to the text behind a hole. If the holes grow, an end of text drops the masked positions behind it in its
    hole. Raises BadInputError for options that holes, or several `lengths` of them, do not support.
    """
    _check_plan(plan, len(holes), lengths, grows=grows)
    span = holes[-1][1] - holes[0][0]
    size = span if block_size is None else min(block_size, span)
    return replace(
        plan,
        max_new_tokens=span,
        positions=span,
        block_size=size,
        sub_block=span,
        block_steps=min(plan.block_steps, size) if block_size is not None else size,
        cache="none" if plan.cache == "blocks" else plan.cache,
        stop_at_eos=False,
        drop_after_eos=grows and plan.drop_after_eos,
    )


def _check_plan(plan: DecodingPlan, holes: int, lengths: int, *, grows: bool) -> None:
    if plan.window != "full" or plan.alignment != "prompt":
        raise BadInputError(
            f"holes for a model that attends to earlier text only (window {plan.window!r}, alignment "
            f"{plan.alignment!r})",
            expected="a model whose rows attend to the text on both sides, e.g. LLaDA, or Dream without a D2F adapter",
            remedy="use such a bundle, or ask for a continuation instead",
        )
    growing = "holes whose lengths the model decides"
    wrong = [
        (which, name)
        for which, name, is_given in (
            ("holes", "choices", plan.has_choices),
            ("holes", "reasoning_budget", plan.reasoning_budget != math.inf),
            ("ranges of lengths", "a grammar", plan.has_grammar and lengths > 1),
            ("holes", "reference", plan.reference),
            ("holes", "remasking", plan.remasks),
            ("holes", "editing_threshold", plan.edits),
            ("holes", "cache 'sub_block'", plan.cache == "sub_block"),
            ("holes", "branches 'auto'", plan.auto_branches),
            ("ranges of lengths", f"cache {plan.cache!r}", lengths > 1 and plan.cache in ("prefix", "dual")),
            (growing, "speculative", grows and plan.speculative),
            (growing, "lookahead branches", grows and plan.lookaheads > 0),
            (growing, "anytime", grows and plan.anytime),
            ("several holes", "stop strings", bool(plan.stop) and holes > 1),
        )
        if is_given
    ]
    if wrong:
        raise BadInputError(
            f"cannot combine {wrong[0][0]} with {wrong[0][1]}",
            expected="one of the two",
            remedy="remove one of the two",
        )
