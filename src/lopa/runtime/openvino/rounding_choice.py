"""EncodedChoice of the precision for "openvino:CPU:auto": the fastest session on this machine, by measurement.

The sessions take turns, so that a slowdown of the machine affects all of them.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import WindowBatch
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import Session, next_request_number

_MIN_ROUNDS, _MAX_ROUNDS = 3, 15
_TIME_BUDGET = 2.0
"""Seconds after which no further round starts, once _MIN_ROUNDS are complete."""
_BLOCKS = 2
"""Blocks of a window: the active block and the next one. The prefix has the same number of rows."""


@dataclass(frozen=True)
class Timed:
    """Quartiles of the seconds of a forward on one device."""

    device: str
    low: float
    median: float
    high: float


@dataclass(frozen=True)
class RoundingChoice:
    """The chosen device, with the measurements."""

    device: str
    """Device name with the chosen precision, e.g. "openvino:CPU:bf16". "openvino:CPU" computes in float32."""
    timed: tuple[Timed, ...]
    """Measurements, float32 first. The tuple is empty if this machine and bundle allow float32 only."""
    rows: int
    """Rows of each forward's window, and of its prefix."""

    def __str__(self) -> str:
        if not self.timed:
            return f"{self.device}, the only one available for this bundle"
        figures = ", ".join(
            f"{each.device} {each.median * 1e3:.3g} ms ({each.low * 1e3:.3g}-{each.high * 1e3:.3g})"
            for each in self.timed
        )
        return f"{self.device}, from {figures}: median and quartiles of a forward of {self.rows} rows after {self.rows}"


def choice_from_sessions(sessions: Mapping[str, Session], manifest: Manifest) -> RoundingChoice:
    """Choose a device among open `sessions`, whose keys are device names. The first one must compute in float32.

    Each runs several forwards of one request with one branch and random tokens. The request is released afterwards.
    """
    sizes = manifest.dimensions
    rows = max(1, min(_BLOCKS * manifest.decoding.block_size, sizes.max_positions // 2))
    if len(sessions) == 1:
        return RoundingChoice(next(iter(sessions)), (), rows)
    request, rng = next_request_number(), np.random.default_rng(0)
    sides = {device: SequentialSession(session) for device, session in sessions.items()}
    seconds: dict[str, list[float]] = {device: [] for device in sessions}
    try:
        prefix, window = (_window(request, rows, start, sizes.vocab_size, rng) for start in (0, rows))
        for session in sides.values():
            session.forward(prefix)
            session.commit(request, 0, rows)
            session.forward(window)  # a warm-up that allocates memory
        began = time.perf_counter()
        for done in range(_MAX_ROUNDS):
            if done >= _MIN_ROUNDS and time.perf_counter() - began > _TIME_BUDGET:
                break
            for device, session in sides.items():
                seconds[device].append(_seconds(session, window))
    finally:
        for session in sides.values():
            session.free(request)
    return choice_from_seconds(seconds, rows)


def choice_from_seconds(seconds: Mapping[str, Sequence[float]], rows: int) -> RoundingChoice:
    """Choose the fastest device whose advantage exceeds the variation, or the first device, which computes in float32.

    `seconds` has at least two forwards per device. A device is preferred to the first one only if its upper quartile is
    below the lower quartile of the first.
    """
    timed = tuple(Timed(device, *statistics.quantiles(each, method="inclusive")) for device, each in seconds.items())
    first, *others = timed
    faster = [each for each in others if each.high < first.low]
    return RoundingChoice(min(faster, key=lambda each: each.median, default=first).device, timed, rows)


def _seconds(session: SequentialSession, batch: WindowBatch) -> float:
    began = time.perf_counter()
    session.forward(batch)
    return time.perf_counter() - began


def _window(request: int, rows: int, start: int, vocabulary: int, rng: np.random.Generator) -> WindowBatch:
    """Return random tokens in `rows` positions from `start` with full attention. All positions are sampled."""
    positions = np.arange(rows)[None, None]
    return WindowBatch(
        requests=(request,),
        input_ids=rng.integers(vocabulary, size=(1, 1, rows)),
        position_ids=positions + start,
        window_mask=np.ones((1, 1, rows, rows), np.bool_),
        logits_index=positions.copy(),
        temperature=np.ones(1, np.float32),
    )
