"""Shadow rows behind the anchor's window, which give the probability of its unmasked tokens (WINO).

Ordinary rows attend to an unmasked token when they predict its position, so they cannot verify it. A shadow row does
not attend to it. There are two kinds:

* A row predicts its own position (`prediction_shift` 0). The shadow row of p holds the mask token at position p and
does not attend to row p.
* A row predicts the next position (1). The shadow row of p holds the token of p - 1 at position p - 1. It attends
neither to row p nor to row p - 1, which it replaces.

No real row attends to a shadow row, so the rest of the round is unchanged. Positions and window mask express all of
this.

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
from lopa.runtime.state.windows import Windows


def with_shadow_rows(windows: Windows, anchor: Branch, verified: Int64, context: Context) -> Windows:
    """Return `windows` with a shadow row behind the rows of `anchor`, the last branch, for each of the positions
    `verified` [S].

    The positions are unmasked ones of its active blocks, ascending, at least one. Their columns follow the anchor's
    sampled positions.
    """
    shift = context.prediction_shift
    branches, width = windows.input_ids.shape
    real, shadows = windows.lengths[-1], len(verified)
    rows = slice(real, real + shadows)
    at = verified - shift
    more = max(0, rows.stop - width)
    padding = np.arange(width, width + more)
    input_ids = np.pad(windows.input_ids, ((0, 0), (0, more)), constant_values=context.pad_token)
    positions = np.concatenate([windows.positions, np.tile(windows.prefix + padding, (branches, 1))], axis=1)
    mask = np.pad(windows.mask, ((0, 0), (0, more), (0, more)))
    mask[:, padding, padding] = True

    input_ids[-1, rows] = anchor.tokens[at] if shift else context.mask_token
    positions[-1, rows] = at
    mask[-1, rows, :real] = _attended_rows(verified, at, windows.positions[-1, :real], anchor, context.plan.window)
    mask[-1, rows, rows] = _attended_shadow_rows(verified, anchor) if shift == 0 else np.eye(shadows, dtype=np.bool_)

    first = windows.kept_columns + len(windows.sampled[-1])
    more_columns = max(0, first + shadows - windows.logits_positions.shape[1])
    logits_positions = np.pad(windows.logits_positions, ((0, 0), (0, more_columns)), mode="edge")
    logits_index = np.pad(windows.logits_index, ((0, 0), (0, more_columns)))
    from_kept_row = np.pad(windows.from_kept_row, ((0, 0), (0, more_columns)))
    columns = slice(first, first + shadows)
    logits_positions[-1, columns], logits_index[-1, columns], from_kept_row[-1, columns] = (
        verified,
        np.arange(real, rows.stop),
        False,
    )
    return replace(
        windows,
        input_ids=input_ids,
        positions=positions,
        mask=mask,
        lengths=(*windows.lengths[:-1], rows.stop),
        logits_positions=logits_positions,
        logits_index=logits_index,
        from_kept_row=from_kept_row,
        remaskable=verified,
    )


def _attended_rows(verified: Int64, at: Int64, order: Int64, anchor: Branch, window: str) -> Bool:
    """Return the rows, at the positions `order` [W], to which each shadow row attends, [S, W].

    A shadow row attends to the rows that its position allows, except the verified row and the row that it replaces.
    """
    hidden: Bool = (order == verified[:, None]) | (order == at[:, None])
    if window == "full":
        return ~hidden
    numbers: Bool = anchor.layout.block_numbers(at)[:, None] >= anchor.layout.block_numbers(order)
    return numbers & ~hidden


def _attended_shadow_rows(verified: Int64, anchor: Branch) -> Bool:
    """Return the shadow rows to which each shadow row attends, [S, S]: all in the same block."""
    numbers = anchor.layout.block_numbers(verified)
    seen: Bool = numbers[:, None] == numbers
    return seen
