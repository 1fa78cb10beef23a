"""Record of one decoding step: its branches, what it unmasked, and how long its parts took. Does nothing."""

import time
from dataclasses import dataclass, field

import numpy as np

from lopa.runtime.algorithm.filling import Fills
from lopa.runtime.contract import Int64
from lopa.runtime.contract.forward import ForwardSplit
from lopa.runtime.sequence.branches import Branch, Lookahead
from lopa.runtime.sequence.windows import Windows
from lopa.runtime.strategy.candidates import Candidates


@dataclass
class Stopwatch:
    """Seconds per phase of one step."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        """The time since the last lap belongs to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


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
    """Of the next step."""
    seconds: dict[str, float]
    split: ForwardSplit | None = None
    """Where the seconds of the forward went, when several devices computed it."""
    taken_back: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Positions that were decided and are not any more."""
    candidates: tuple[Candidates, ...] = ()
    """Candidates of each branch for its sampled positions (windows.asked)."""
    fill_branches: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[fills]: the branch from whose answers each fill comes; with `lossless` a step may use several."""
    last: Lookahead | None = None
    """The lookahead token that completed the answer, so that no further step verifies it; else None."""
