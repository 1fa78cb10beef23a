"""Compare one forward on several engines: equal windows on the same prefix, medians and ratios.

The engines alternate within each round, so a slow phase of the machine affects all of them. The caller opens the
sessions.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lopa.bench.forward.cost_measurement import random_prefix_rows, random_window
from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.turns import run_in_turns
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Statistics
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import Session

_REQUEST = 0


@dataclass(frozen=True)
class SideResult:
    """Result of one engine at one shape."""

    side: str
    shape: ForwardShape
    median: float
    """Median seconds of a forward."""
    minimum: float
    ratio: float
    """Median of the first side divided by this median."""
    same_best: float
    """Share of sampled positions with the same most probable token as on the first side."""
    logprob_error: float
    """Mean absolute difference of the most probable token's log-probability from the first side."""


def compare_forwards(
    sides: Mapping[str, Session],
    manifest: Manifest,
    shapes: Sequence[ForwardShape],
    rounds: int,
    progress: BenchProgress = silent,
) -> tuple[SideResult, ...]:
    """Measure every side at every shape. The first side is the baseline.

    `manifest` has the dimensions that all sides share. `progress` receives the number of finished rounds.
    """
    results: list[SideResult] = []
    sequential = {name: SequentialSession(session) for name, session in sides.items()}
    for number, shape in enumerate(shapes):
        rng = np.random.default_rng(number)
        rows = random_prefix_rows(manifest, shape.prefix, rng)
        batch = random_window(manifest, _REQUEST, shape, rng)
        answers: dict[str, Statistics] = {}
        try:
            for name, session in sequential.items():
                session.append_rows(_REQUEST, rows)
                answers[name] = session.run(batch)  # warm-up: allocates memory
            timed = {name: partial(_seconds_of_forward, session, batch) for name, session in sequential.items()}
            seconds = run_in_turns(timed, rounds, lambda done, _=None, before=number * rounds: progress(before + done))
        finally:
            for session in sequential.values():
                session.free(_REQUEST)
        results += results_of_shape(shape, seconds, answers)
    return tuple(results)


def _seconds_of_forward(session: SequentialSession, batch: PackedBatch, _turn: int) -> float:
    began = time.perf_counter()
    session.run(batch)
    return time.perf_counter() - began


def results_of_shape(
    shape: ForwardShape, seconds: Mapping[str, Sequence[float]], answers: Mapping[str, Statistics]
) -> list[SideResult]:
    """Return medians, ratios and differences from the first side."""
    first = next(iter(seconds))
    return [
        SideResult(
            side=name,
            shape=shape,
            median=statistics.median(found),
            minimum=min(found),
            ratio=statistics.median(seconds[first]) / statistics.median(found),
            same_best=float((answers[name].topk_ids[..., 0] == answers[first].topk_ids[..., 0]).mean()),
            logprob_error=float(
                np.abs(answers[name].topk_logprobs[..., 0] - answers[first].topk_logprobs[..., 0]).mean()
            ),
        )
        for name, found in seconds.items()
    ]
