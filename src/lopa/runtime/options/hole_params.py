"""The decoding params of a text with holes."""

import math
from collections.abc import Sequence
from dataclasses import replace

from lopa.runtime.errors import BadInputError
from lopa.runtime.options.decoding_params import DecodingParams


def params_for_holes(
    params: DecodingParams,
    holes: Sequence[tuple[int, int]],
    *,
    block_size: int | None,
    lengths: int = 1,
    grows: bool = False,
) -> DecodingParams:
    """Return `params` for a text whose `holes`, positions from a start to an exclusive end, are filled.

    All holes are one block, unless the request sets `block_size`. Nothing is cached by blocks, because every row
    attends to the text behind a hole. If the holes grow, an end of text drops the masked positions behind it in its
    hole. Raises BadInputError for options that holes, or several `lengths` of them, do not support.
    """
    _check_params(params, len(holes), lengths, grows=grows)
    span = holes[-1][1] - holes[0][0]
    size = span if block_size is None else min(block_size, span)
    return replace(
        params,
        max_new_tokens=span,
        positions=span,
        block_size=size,
        sub_block=span,
        block_steps=min(params.block_steps, size) if block_size is not None else size,
        cache="none" if params.cache == "blocks" else params.cache,
        stop_at_eos=False,
        drop_after_eos=grows and params.drop_after_eos,
    )


def _check_params(params: DecodingParams, holes: int, lengths: int, *, grows: bool) -> None:
    if params.attention != "full" or params.alignment != "prompt":
        raise BadInputError(
            f"holes for a model that attends to earlier text only (attention {params.attention!r}, alignment "
            f"{params.alignment!r})",
            expected="a model whose rows attend to the text on both sides, e.g. LLaDA, or Dream without a D2F adapter",
            remedy="use such a bundle, or ask for a continuation instead",
        )
    growing = "holes whose lengths the model decides"
    wrong = [
        (which, name)
        for which, name, is_given in (
            ("holes", "choices", params.has_choices),
            ("holes", "reasoning_budget", params.reasoning_budget != math.inf),
            ("ranges of lengths", "a grammar", params.has_grammar and lengths > 1),
            ("holes", "reference", params.reference),
            ("holes", "stop_token_ids", bool(params.stop_token_ids)),
            ("holes", "remasking", params.remasks),
            ("holes", "editing_threshold", params.edits),
            ("holes", "cache 'sub_block'", params.cache == "sub_block"),
            ("holes", "branches 'auto'", params.auto_branches),
            ("ranges of lengths", f"cache {params.cache!r}", lengths > 1 and params.cache in ("prefix", "dual")),
            (growing, "speculative", grows and params.speculative),
            (growing, "lookahead branches", grows and params.lookaheads > 0),
            (growing, "anytime", grows and params.anytime),
            ("several holes", "stop strings", bool(params.stop) and holes > 1),
        )
        if is_given
    ]
    if wrong:
        raise BadInputError(
            f"cannot combine {wrong[0][0]} with {wrong[0][1]}",
            expected="one of the two",
            remedy="remove one of the two",
        )
