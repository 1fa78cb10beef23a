"""Dream's schedule: the number of positions that each step unmasks, and its random choice of positions.

Time falls from 1 to EPS in equal steps. A step unmasks the share of masked positions by which time falls, rounded down.
The last step unmasks all. A step that unmasks nothing needs no forward, because the input has not changed.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy.draws import uniform_at

EPS = 1e-3
_POSITIONS, _NOISE = 2, 3
"""Random streams of positions; lopa.runtime.decoding.candidates has the streams of tokens."""


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """Number of the schedule's step, from 0, that a round performs."""

    number: int

    def before(self, end: int) -> Self:  # noqa: ARG002
        """Return this step: it does not depend on positions (see Memory)."""
        return self


def next_step(last: ScheduleStep | None, positions: Int64, params: DecodingParams) -> ScheduleStep:
    """Return the first step after `last` that unmasks any of the masked `positions`.

    Once the last step was reached, it is returned again.
    """
    end = params.own["steps"] - 1
    first = 0 if last is None else min(last.number + 1, end)
    if params.own["alg"] == "origin":
        return ScheduleStep(int(_steps_drawn(first, positions, params).min(initial=end)))
    counts = np.floor(np.float32(len(positions)) * _shares(params)[first:])
    return ScheduleStep(first + int(np.argmax(counts >= 1)))


def count_of_step(step: ScheduleStep, num_masked: int, params: DecodingParams) -> int:
    """Return how many of `num_masked` positions a step unmasks when it chooses them by rank."""
    return int(np.float32(num_masked) * _shares(params)[step.number])


def drawn_in_step(step: ScheduleStep, positions: Int64, params: DecodingParams) -> Bool:
    """Return which of `positions` [n] a step unmasks when it draws each independently (alg "origin")."""
    drawn: Bool = _steps_drawn(step.number, positions, params) == step.number
    return drawn


def noise_of_step(step: ScheduleStep, positions: Int64, params: DecodingParams) -> Floats:
    """Return Gumbel noise, [n]. The positions with the largest sums of log-weight and noise are a draw without
    replacement."""
    uniform = np.clip(_uniform(_NOISE, step.number, positions, params), 1e-12, 1 - 1e-12)
    noise: Floats = -np.log(-np.log(uniform))
    return noise


def _steps_drawn(first: int, positions: Int64, params: DecodingParams) -> Int64:
    """Return the first step, from `first` on, in which each of `positions` [n] is drawn.

    Each step draws each position independently with the step's share as its probability. A position therefore stays
    undrawn between two times with probability later / earlier. One draw from that distribution replaces a loop over all
    steps. A position that its step left masked gets a later step.
    """
    times = _times(params.own["steps"])
    found, after, draw = np.full(len(positions), -1), np.ones(len(positions)), 0
    while (found < first).any():
        until = after * _uniform(_POSITIONS, draw, positions, params)
        following = np.minimum(np.searchsorted(-times[1:], -until), params.own["steps"] - 1)
        found = np.where(found < first, np.maximum(following, found + 1), found)
        after, draw = times[found + 1], draw + 1
    return found


def _uniform(stream: int, number: int, positions: Int64, params: DecodingParams) -> Floats:
    """Return uniform numbers [n] that depend only on seed, stream, number and position."""
    return uniform_at(positions, 1, seed=params.seed, step=number, stream=stream)[..., 0]


def _shares(params: DecodingParams) -> Float32:
    """Return the share of masked positions that each step unmasks, [steps], in float32 as the published loop does."""
    return _shares_of(params.own["steps"])


@lru_cache(maxsize=8)
def _shares_of(steps: int) -> Float32:
    times = _times(steps).astype(np.float32)
    shares = np.ones(steps, np.float32)
    shares[:-1] -= times[1:-1] / times[:-2]
    shares.flags.writeable = False  # callers share the cached array
    return shares


@lru_cache(maxsize=8)
def _times(steps: int) -> Floats:
    """Return the boundaries of the steps in time, [steps + 1], as float32 numbers."""
    number = np.arange(steps + 1, dtype=np.float64)
    step = np.float64((np.float32(EPS) - np.float32(1)) / np.float32(steps))
    # torch.linspace rounds once, after multiplication and addition, and counts from either end.
    from_end = np.float64(np.float32(EPS)) - step * number[::-1]
    times = np.where(number < (steps + 1) // 2, 1 + step * number, from_end).astype(np.float32).astype(np.float64)
    times.flags.writeable = False
    return times
