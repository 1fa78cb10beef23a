"""Record of one decoding step: branches, unmasked tokens, timings."""

from dataclasses import dataclass, field

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.contract.forward import ForwardSplit
from lopa.runtime.decoding.round import EditedTokens, UnmaskedTokens
from lopa.runtime.state.branch import Branch, Lookahead
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.strategy import Candidates


@dataclass(frozen=True)
class Step:
    """Record of one decoding step. `lopa.runtime.decoding.step_table` makes a flat table of several steps."""

    number: int
    """Number of the step, 1 for the first."""
    branches: tuple[Branch, ...]
    """Verified branches, the anchor last."""
    rows: PackedRows
    """Rows of the forward, and the columns that the step read."""
    confidences: tuple[float, ...]
    winner: int
    unmasked: UnmaskedTokens
    lookaheads: tuple[Lookahead, ...]
    """Lookahead tokens of the next step."""
    seconds: dict[str, float]
    """Seconds per phase."""
    split: ForwardSplit | None = None
    """Seconds of the forward by device; None with a single device."""
    remasked: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Positions that the step remasked."""
    candidates: tuple[Candidates, ...] = ()
    """Candidates of each branch at its sampled positions (`rows.sampled`)."""
    unmasked_branches: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[unmasked tokens]: branch whose statistics each token comes from; with `speculative` a step may use several."""
    last: Lookahead | None = None
    """Lookahead token that completed the answer, which no later step verifies; None in other steps."""
    edited: EditedTokens = field(default_factory=EditedTokens)
    """Unmasked tokens that the step replaced."""
