"""Dream's schedule: how many positions each of its steps decides, and its draws of positions. Pure.

Time falls from 1 to EPS in equal steps; a step decides the share of the masks by which time falls, rounded down,
and the last one all. A step that decides nothing needs no forward: what the model would say is what it said before.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.plan import DecodingPlan

EPS = 1e-3
_WHICH, _NOISE = 2, 3
"""Streams of draws, beside those of tokens (lopa.runtime.decoding.draws)."""


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """The step of the schedule, from 0, that a round does."""

    number: int

    def before(self, end: int) -> Self:  # noqa: ARG002
        """As a Memory: the same whatever positions go."""
        return self


def next_step(last: ScheduleStep | None, positions: Int64, plan: DecodingPlan) -> ScheduleStep:
    """The first step behind `last` that decides any of the undecided `positions`; the last step for ever after it."""
    end = plan.own["steps"] - 1
    first = 0 if last is None else min(last.number + 1, end)
    if plan.own["alg"] == "origin":
        return ScheduleStep(int(_steps_drawn(first, positions, plan).min(initial=end)))
    counts = np.floor(np.float32(len(positions)) * _shares(plan)[first:])
    return ScheduleStep(first + int(np.argmax(counts >= 1)))


def count_of_step(step: ScheduleStep, undecided: int, plan: DecodingPlan) -> int:
    """How many of so many undecided positions a step decides, where it takes the first by rank."""
    return int(np.float32(undecided) * _shares(plan)[step.number])


def drawn_in_step(step: ScheduleStep, positions: Int64, plan: DecodingPlan) -> Bool:
    """[n]: which positions a step decides that draws each by itself (origin)."""
    drawn: Bool = _steps_drawn(step.number, positions, plan) == step.number
    return drawn


def noise_of_step(step: ScheduleStep, positions: Int64, plan: DecodingPlan) -> Floats:
    """[n]: Gumbel noise. The best of log-weights with it are draws without replacement, each in proportion to what is
    left."""
    uniform = np.clip(_uniform(_NOISE, step.number, positions, plan), 1e-12, 1 - 1e-12)
    noise: Floats = -np.log(-np.log(uniform))
    return noise


def _steps_drawn(first: int, positions: Int64, plan: DecodingPlan) -> Int64:
    """[n]: the first step, from `first` on, in which each position is drawn.

    Every step draws a position by itself, with the step's share. How long that takes is drawn at once instead: a
    position is not drawn between two times with the ratio of the later to the earlier as its probability. So a schedule
    of many steps is not looked through, and a position that its step left undecided has a next one.
    """
    times = _times(plan.own["steps"])
    found, after, draw = np.full(len(positions), -1), np.ones(len(positions)), 0
    while (found < first).any():
        until = after * _uniform(_WHICH, draw, positions, plan)
        following = np.minimum(np.searchsorted(-times[1:], -until), plan.own["steps"] - 1)
        found = np.where(found < first, np.maximum(following, found + 1), found)
        after, draw = times[found + 1], draw + 1
    return found


def _uniform(stream: int, number: int, positions: Int64, plan: DecodingPlan) -> Floats:
    """[n]: depends on seed, stream, number and position alone."""
    generator = np.random.Generator(np.random.Philox(key=plan.seed, counter=[0, 0, number, stream]))
    table: Floats = generator.random(int(positions.max(initial=-1)) + 1)
    return table[positions]


def _shares(plan: DecodingPlan) -> Float32:
    """[steps]: the share of the masks that each step decides, in float32 as the published loop computes it."""
    return _shares_of(plan.own["steps"])


@lru_cache(maxsize=8)
def _shares_of(steps: int) -> Float32:
    times = _times(steps).astype(np.float32)
    shares = np.ones(steps, np.float32)
    shares[:-1] -= times[1:-1] / times[:-2]
    shares.flags.writeable = False  # what is kept is everyone's
    return shares


@lru_cache(maxsize=8)
def _times(steps: int) -> Floats:
    """[steps + 1]: the times between which the steps lie, numbers of float32."""
    number = np.arange(steps + 1, dtype=np.float64)
    step = np.float64((np.float32(EPS) - np.float32(1)) / np.float32(steps))
    # Sums and products together are rounded once, as torch.linspace does from either end.
    from_end = np.float64(np.float32(EPS)) - step * number[::-1]
    times = np.where(number < (steps + 1) // 2, 1 + step * number, from_end).astype(np.float32).astype(np.float64)
    times.flags.writeable = False
    return times
