"""Which numbers "openvino:CPU:auto" computes with: those of the session that is the fastest on this machine, measured.

The sessions take turns, so that a machine that slows down slows all of them. Does not know how a session is opened.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import WindowBatch
from lopa.runtime.sessions.session import Session, unused_request

_MIN_ROUNDS, _MAX_ROUNDS = 3, 15
_ENOUGH = 2.0
"""Seconds after which no further round begins, once there are _MIN_ROUNDS."""
_BLOCKS = 2
"""Of a window: the active block and the one behind it. As many rows lie in the prefix."""


@dataclass(frozen=True)
class Timed:
    """Seconds of a forward on one device: half of the forwards lie between the quartiles."""

    device: str
    low: float
    median: float
    high: float


@dataclass(frozen=True)
class RoundingChoice:
    """The device that was taken, and by what figures."""

    device: str
    """With the rounding that was taken in its name, "openvino:CPU:bf16"; "openvino:CPU" computes in float32."""
    timed: tuple[Timed, ...]
    """float32 first; nothing where it is the only one that this machine and bundle have."""
    rows: int
    """Of the window of each forward; as many were in the prefix."""

    def __str__(self) -> str:
        if not self.timed:
            return f"{self.device}, the only one that this machine has for this bundle"
        figures = ", ".join(
            f"{each.device} {each.median * 1e3:.3g} ms ({each.low * 1e3:.3g}-{each.high * 1e3:.3g})"
            for each in self.timed
        )
        return f"{self.device}, of {figures}: medians and quartiles of a forward of {self.rows} rows behind {self.rows}"


def choice_from_sessions(sessions: Mapping[str, Session], manifest: Manifest) -> RoundingChoice:
    """The choice among open `sessions` by their device, of which the first computes in float32.

    Each runs some forwards of one request with one branch, of random tokens; nothing of it stays.
    """
    sizes = manifest.dimensions
    rows = max(1, min(_BLOCKS * manifest.decoding.block_size, sizes.max_positions // 2))
    if len(sessions) == 1:
        return RoundingChoice(next(iter(sessions)), (), rows)
    request, rng = unused_request(), np.random.default_rng(0)
    seconds: dict[str, list[float]] = {device: [] for device in sessions}
    try:
        prefix, window = (_window(request, rows, start, sizes.vocab_size, rng) for start in (0, rows))
        for session in sessions.values():
            session.forward(prefix)
            session.commit(request, 0, rows)
            session.forward(window)  # not counted: it pays for memory that later ones find ready
        began = time.perf_counter()
        for done in range(_MAX_ROUNDS):
            if done >= _MIN_ROUNDS and time.perf_counter() - began > _ENOUGH:
                break
            for device, session in sessions.items():
                seconds[device].append(_seconds(session, window))
    finally:
        for session in sessions.values():
            session.release(request)
    return choice_from_seconds(seconds, rows)


def choice_from_seconds(seconds: Mapping[str, Sequence[float]], rows: int) -> RoundingChoice:
    """The first device, which rounds nothing, unless another is faster by more than both vary: of these the fastest.

    `seconds` has two forwards or more of each device; the upper quartile of another has to lie below the lower one of
    the first.
    """
    timed = tuple(Timed(device, *statistics.quantiles(each, method="inclusive")) for device, each in seconds.items())
    first, *others = timed
    faster = [each for each in others if each.high < first.low]
    return RoundingChoice(min(faster, key=lambda each: each.median, default=first).device, timed, rows)


def _seconds(session: Session, batch: WindowBatch) -> float:
    began = time.perf_counter()
    session.forward(batch)
    return time.perf_counter() - began


def _window(request: int, rows: int, start: int, vocabulary: int, rng: np.random.Generator) -> WindowBatch:
    """Random tokens in `rows` positions from `start`, each of which sees all; the statistics of all are wanted."""
    positions = np.arange(rows)[None, None]
    return WindowBatch(
        requests=(request,),
        input_ids=rng.integers(vocabulary, size=(1, 1, rows)),
        position_ids=positions + start,
        window_mask=np.ones((1, 1, rows, rows), np.bool_),
        logits_index=positions.copy(),
        temperature=np.ones(1, np.float32),
    )
