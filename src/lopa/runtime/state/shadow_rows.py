"""Shadow rows behind the anchor's rows, which give the probability of its unmasked tokens (WINO).

Ordinary rows attend to an unmasked token when they predict its position, so they cannot verify it. A shadow row does
not attend to it. There are two kinds:

* A row predicts its own position (`prediction_shift` 0). The shadow row of p holds the mask token at position p and
does not attend to row p.
* A row predicts the next position (1). The shadow row of p holds the token of p - 1 at position p - 1. It attends
neither to row p nor to row p - 1, which it replaces.

No real row attends to a shadow row, so the rest of the round is unchanged. Positions and mask express all of this.

A shadow row attends to the other shadow rows of its block if they hold masks, as published. It does not if they hold
tokens, because one of them is the token to verify and the others would count twice.

By itself, a shadow row gives the statistics of a forward with only that position masked. However, other rows and cached
rows have attended to the token, which affects every layer but the first (docs/concepts/decoding.md, "Remasking", has
the measured size).
"""

from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.packed_rows import PackedRows


def with_shadow_rows(packed: PackedRows, anchor: Branch, verified: Int64, context: Context) -> PackedRows:
    """Return `packed` with a shadow row behind the rows of `anchor`, the last branch, for each of the positions
    `verified` [S].

    The positions are unmasked ones of its active blocks, ascending. Their columns follow all others.
    """
    shift, real, shadows = context.prediction_shift, packed.lengths[-1], len(verified)
    at, length = verified - shift, real + shadows
    mask = np.zeros((length, length), np.bool_)
    mask[:real, :real] = packed.masks[-1]
    mask[real:, :real] = _attended_rows(verified, at, packed.positions[-real:], anchor, context.params.attention)
    mask[real:, real:] = _attended_shadow_rows(verified, anchor) if shift == 0 else np.eye(shadows, dtype=np.bool_)
    tokens = anchor.tokens[at] if shift else np.full(shadows, context.mask_token)
    return replace(
        packed,
        lengths=(*packed.lengths[:-1], length),
        branch_lengths=(*packed.branch_lengths[:-1], length),
        input_ids=np.concatenate([packed.input_ids, tokens]),
        positions=np.concatenate([packed.positions, at]),
        mask=np.concatenate([packed.mask[: -(real**2)], mask.ravel()]),
        column_positions=np.concatenate([packed.column_positions, verified]),
        column_rows=np.concatenate([packed.column_rows, packed.input_ids.size + np.arange(shadows)]),
        remaskable=verified,
    )


def _attended_rows(verified: Int64, at: Int64, order: Int64, anchor: Branch, attention: str) -> Bool:
    """Return the rows, at the positions `order` [W], to which each shadow row attends, [S, W].

    A shadow row attends to the rows that its position allows, except the verified row and the row that it replaces.
    """
    hidden: Bool = (order == verified[:, None]) | (order == at[:, None])
    if attention == "full":
        return ~hidden
    numbers: Bool = anchor.layout.block_numbers(at)[:, None] >= anchor.layout.block_numbers(order)
    return numbers & ~hidden


def _attended_shadow_rows(verified: Int64, anchor: Branch) -> Bool:
    """Return the shadow rows to which each shadow row attends, [S, S]: all in the same block."""
    numbers = anchor.layout.block_numbers(verified)
    seen: Bool = numbers[:, None] == numbers
    return seen
