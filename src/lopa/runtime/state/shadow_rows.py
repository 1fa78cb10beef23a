"""Rows behind the anchor's window that say how probable its unmasked tokens are: WINO's shadow rows.

A forward never says how probable an unmasked token is, since the rows that speak of its position may see it. A shadow
row stands for one that must not. Where a row speaks of its own position (`prediction_shift` 0), the shadow of p is the
mask token at position p and does not see row p. Where a row speaks of the next position, it is the token of p - 1 at
position p - 1, and sees neither row p nor row p - 1, which it replaces. No real row sees a shadow row, so nothing else
of the round changes; the contract's positions and window mask say it all.

A shadow row sees those of its own block too where these are masks, as published; where they carry tokens it does not:
one of them would be the very token that is judged, and the others stand twice then.

What it answers is what a forward of the same branch with that one position masked would, as far as the shadow row
itself reads: other rows, and cached ones, have seen the token, and what they have made of it is read in every layer
but the first (docs/concepts/decoding.md, "Remasking", has how much that is).
"""

from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.windows import Windows


def with_shadow_rows(windows: Windows, anchor: Branch, judged: Int64, context: Context) -> Windows:
    """Return `windows` with a row behind the last one of `anchor`, the last branch, for each position `judged` [S].

    These are unmasked positions of its active blocks, ascending, at least one. What is said of them comes behind what
    the anchor asks.
    """
    shift = context.prediction_shift
    branches, width = windows.input_ids.shape
    real, shadows = windows.lengths[-1], len(judged)
    rows = slice(real, real + shadows)
    at = judged - shift
    more = max(0, rows.stop - width)
    padding = np.arange(width, width + more)
    input_ids = np.pad(windows.input_ids, ((0, 0), (0, more)), constant_values=context.pad_token)
    positions = np.concatenate([windows.positions, np.tile(windows.prefix + padding, (branches, 1))], axis=1)
    mask = np.pad(windows.mask, ((0, 0), (0, more), (0, more)))
    mask[:, padding, padding] = True

    input_ids[-1, rows] = anchor.tokens[at] if shift else context.mask_token
    positions[-1, rows] = at
    mask[-1, rows, :real] = _seen(judged, at, windows.positions[-1, :real], anchor, context.plan.window)
    mask[-1, rows, rows] = _seen_shadows(judged, anchor) if shift == 0 else np.eye(shadows, dtype=np.bool_)

    first = windows.kept + len(windows.asked[-1])
    asking = max(0, first + shadows - windows.wanted.shape[1])
    wanted = np.pad(windows.wanted, ((0, 0), (0, asking)), mode="edge")
    logits_index = np.pad(windows.logits_index, ((0, 0), (0, asking)))
    lacking = np.pad(windows.lacking, ((0, 0), (0, asking)))
    columns = slice(first, first + shadows)
    wanted[-1, columns], logits_index[-1, columns], lacking[-1, columns] = judged, np.arange(real, rows.stop), False
    return replace(
        windows,
        input_ids=input_ids,
        positions=positions,
        mask=mask,
        lengths=(*windows.lengths[:-1], rows.stop),
        wanted=wanted,
        logits_index=logits_index,
        lacking=lacking,
        judged=judged,
    )


def _seen(judged: Int64, at: Int64, order: Int64, anchor: Branch, window: str) -> Bool:
    """Return which rows, at the positions `order` [W], a shadow row sees, [S, W].

    These are the rows that a row in its place sees, without the one that is judged and the one that it stands for.
    """
    hidden: Bool = (order == judged[:, None]) | (order == at[:, None])
    if window == "full":
        return ~hidden
    numbers: Bool = anchor.layout.numbers(at)[:, None] >= anchor.layout.numbers(order)
    return numbers & ~hidden


def _seen_shadows(judged: Int64, anchor: Branch) -> Bool:
    """Return which shadow rows a shadow row sees, [S, S]: those of its own block."""
    numbers = anchor.layout.numbers(judged)
    seen: Bool = numbers[:, None] == numbers
    return seen
