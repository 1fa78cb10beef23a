"""Pieces of a long prompt, which share forwards with the rounds of other requests.

This is possible where rows attend to nothing behind their block, as for rows that requests share (prefix_tree.py). A
prompt that is one block stays one forward: all of its rows attend to each other (D2F). The first round computes the
rest of the prompt, at least one whole block. Steps and answers are therefore those of a prompt in one forward.
"""

from dataclasses import dataclass

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.options import DecodingParams
from lopa.runtime.requests.prefix_tree import prefix_reuse
from lopa.runtime.state.layout import Layout
from lopa.runtime.state.packed_rows import PackedRows, attention_mask

MAX_PIECE = 512
"""Rows of a piece, about those of a round of 16 requests with blocks of 32."""


@dataclass(frozen=True)
class PromptPieces:
    """The rows of a prompt before position `end`, in pieces of `size` rows; none if `end` is 0."""

    size: int = 0
    end: int = 0

    def rows(self, prompt: Int64, start: int, layout: Layout, params: DecodingParams) -> PackedRows:
        """Return the rows of the piece that begins at position `start` of `prompt` [length]. It samples nothing."""
        order, none = np.arange(start, min(start + self.size, self.end)), np.empty(0, np.int64)
        return PackedRows(
            prefix=start,
            commit=len(order),
            lengths=(len(order),),
            branch_lengths=(len(order),),
            input_ids=prompt[order],
            positions=order,
            mask=attention_mask(order, layout, params).ravel(),
            sampled=(none,),
            kept_columns=0,
            column_positions=none,
            column_rows=none,
            cached=np.arange(start),
        )


def pieces_of_prompt(
    prompt: int, cached: int, params: DecodingParams, prediction_shift: int, rows_per_forward: int
) -> PromptPieces:
    """Return the pieces of a prompt with `prompt` tokens, whose first `cached` rows are in the cache."""
    blocks = prefix_reuse(prompt, params, prediction_shift)
    if blocks is None or blocks.whole_prompt:
        return PromptPieces()
    size = max(1, min(MAX_PIECE, rows_per_forward) // blocks.block) * blocks.block
    end = min(cached + (prompt - cached - 1) // size * size, blocks.limit - blocks.block)
    return PromptPieces(size, end) if end > cached else PromptPieces()
