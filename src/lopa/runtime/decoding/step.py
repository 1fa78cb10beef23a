"""Record of one decoding step: its branches, what it unmasked, and how long its parts took."""

from dataclasses import dataclass, field

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.contract.forward import ForwardSplit
from lopa.runtime.decoding.round import Fills
from lopa.runtime.plan.renamed_options import warn_renamed
from lopa.runtime.state.branch import Branch, Lookahead
from lopa.runtime.state.windows import Windows
from lopa.runtime.strategy import Candidates


@dataclass(frozen=True)
class Step:
    """Record of one decoding step; `lopa.runtime.trace_table` makes a flat table of many."""

    number: int
    """1 for the first."""
    branches: tuple[Branch, ...]
    """As verified, the anchor last."""
    windows: Windows
    confidences: tuple[float, ...]
    winner: int
    fills: Fills
    lookaheads: tuple[Lookahead, ...]
    """Lookahead tokens of the next step."""
    seconds: dict[str, float]
    """Seconds per phase."""
    split: ForwardSplit | None = None
    """Where the seconds of the forward went, when several devices computed it."""
    remasked: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Positions that were unmasked and are masked again."""
    candidates: tuple[Candidates, ...] = ()
    """Candidates of each branch for its sampled positions (windows.asked)."""
    fill_branches: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[fills]: the branch from whose answers each fill comes; with `speculative` a step may use several."""
    last: Lookahead | None = None
    """The lookahead token that completed the answer, so that no further step verifies it; else None."""

    @property
    def taken_back(self) -> Int64:
        """Former name of `remasked`."""
        warn_renamed("taken_back", "remasked", stacklevel=3)
        return self.remasked
