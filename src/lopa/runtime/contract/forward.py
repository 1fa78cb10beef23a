"""The engine contract, version 1 (docs/concepts/contract.md): names, types and shapes of one forward.

R requests, B branches, W window rows a branch, P prefix rows, Q rows whose statistics are wanted, K candidates.
Knows arrays only: no device, no file, no decoding rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONTRACT_VERSION = 1
TILE = 64
"""Prefix rows come in multiples of this, and at least one tile."""
TOP_K = 8
"""Candidates that come back for every wanted row."""

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating]
Rows = npt.NDArray[np.floating | np.uint16]
"""Key or value rows as caches hold them: float32, float16, or bfloat16's bits (lopa.runtime.contract.stored_floats)."""
_ALL = slice(None)

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
WINDOW_MASK = "window_mask"
PREFIX_MASK = "prefix_mask"
LOGITS_INDEX = "logits_index"
TEMPERATURE = "temperature"
TOPK_IDS = "topk_ids"
TOPK_LOGPROBS = "topk_logprobs"
ENTROPY = "entropy"
LOGITS = "logits"


def past_names(layers: int) -> list[str]:
    """Names of the prefix cache inputs, key before value, layer by layer: each dtype [R, Hkv, P, D]."""
    return [f"past_key_values.{i}.{part}" for i in range(layers) for part in ("key", "value")]


def window_names(layers: int) -> list[str]:
    """Names of the new rows that come out, in the order of `past_names`: each dtype [R, B, Hkv, W, D]."""
    return [f"window_key_values.{i}.{part}" for i in range(layers) for part in ("key", "value")]


def input_names(layers: int) -> list[str]:
    """All inputs of a graph, in order."""
    return [INPUT_IDS, POSITION_IDS, WINDOW_MASK, PREFIX_MASK, LOGITS_INDEX, TEMPERATURE, *past_names(layers)]


def output_names(layers: int, *, with_logits: bool) -> list[str]:
    """All outputs of a graph, in order; `logits` only in a bundle made for verification."""
    statistics = [TOPK_IDS, TOPK_LOGPROBS, ENTROPY]
    return [*statistics, *window_names(layers), *([LOGITS] if with_logits else [])]


@dataclass(frozen=True)
class WindowBatch:
    """What one forward is asked: the windows of every branch of every request.

    A padding row (behind a shorter branch) has a mask that lets it see itself alone; no real row sees it.
    """

    requests: tuple[int, ...]
    """R request numbers, chosen by the caller; the session keeps one prefix cache for each."""
    input_ids: Int64
    """[R, B, W]"""
    position_ids: Int64
    """[R, B, W], absolute positions."""
    window_mask: Bool
    """[R, B, W, W]: row (query) may attend to column (key) of its own branch's window."""
    logits_index: Int64
    """[R, B, Q]: window rows whose next-token statistics are wanted."""
    temperature: Float32
    """[R], 1 for greedy."""

    def part(self, requests: slice = _ALL, branches: slice = _ALL) -> "WindowBatch":
        """The windows of some branches of some requests: views."""
        some = (requests, branches)
        return WindowBatch(
            requests=self.requests[requests],
            input_ids=self.input_ids[some],
            position_ids=self.position_ids[some],
            window_mask=self.window_mask[some],
            logits_index=self.logits_index[some],
            temperature=self.temperature[requests],
        )


def check_batch(batch: WindowBatch) -> None:
    """Raise ValueError unless the shapes of `batch` agree and its requests are distinct."""
    if batch.input_ids.ndim != 3 or 0 in batch.input_ids.shape:
        raise ValueError(f"received input_ids {batch.input_ids.shape}, expected [R, B, W], none of them 0")
    requests, branches, width = batch.input_ids.shape
    queries = batch.logits_index.shape[-1]
    for name, found, expected in (
        ("requests", (len(set(batch.requests)),), (requests,)),
        ("position_ids", batch.position_ids.shape, (requests, branches, width)),
        ("window_mask", batch.window_mask.shape, (requests, branches, width, width)),
        ("logits_index", batch.logits_index.shape, (requests, branches, queries)),
        ("temperature", batch.temperature.shape, (requests,)),
    ):
        if found != expected:
            raise ValueError(f"received {name} {found}, expected {expected} for input_ids {batch.input_ids.shape}")
    if len(batch.requests) != requests:
        raise ValueError(f"received requests {batch.requests}, expected {requests} distinct numbers")


@dataclass(frozen=True)
class DeviceTime:
    """One device's share of a forward over several."""

    device: str
    branches: int
    seconds: float
    """Of its forward, without the time that the share waited for earlier work of the device."""


@dataclass(frozen=True)
class ForwardSplit:
    """Where the seconds of a forward over several devices went."""

    devices: tuple[DeviceTime, ...]
    """Those that had a share, in the order of the branches."""
    gather: float
    """Seconds beyond the slowest forward: committed rows still on their way, dealing, waiting, putting together."""


@dataclass(frozen=True)
class Statistics:
    """What one forward answers, on the host."""

    topk_ids: Int64
    """[R, B, Q, K], most probable first; equal probabilities by lower id."""
    topk_logprobs: Float32
    """[R, B, Q, K], of the tempered distribution."""
    entropy: Float32
    """[R, B, Q], in nats, over the whole vocabulary."""
    logits: Float32 | None = None
    """[R, B, Q, V] before the temperature, only from a bundle made with --with-logits."""
    split: ForwardSplit | None = None
    """Where the time went, from a session of several devices."""

    def part(self, requests: slice = _ALL, branches: slice = _ALL, wanted: slice = _ALL) -> "Statistics":
        """Those of some wanted rows of some branches of some requests: views."""
        some = (requests, branches, wanted)
        logits = None if self.logits is None else self.logits[some]
        return Statistics(self.topk_ids[some], self.topk_logprobs[some], self.entropy[some], logits)

    @staticmethod
    def joined(parts: "Sequence[Statistics]", across: int | None = None) -> "Statistics":
        """The statistics of a forward from those of its parts, at least one: some requests, then the next ones.

        Each time `across` parts have the branches of the same requests, in order; None: all parts have.
        """
        across = len(parts) if across is None else across
        rows = [_concatenated(parts[first : first + across], axis=1) for first in range(0, len(parts), across)]
        return _concatenated(rows, axis=0)


def _concatenated(parts: Sequence[Statistics], *, axis: int) -> Statistics:
    if len(parts) == 1:
        return parts[0]
    logits = [part.logits for part in parts if part.logits is not None]
    return Statistics(
        topk_ids=np.concatenate([part.topk_ids for part in parts], axis),
        topk_logprobs=np.concatenate([part.topk_logprobs for part in parts], axis),
        entropy=np.concatenate([part.entropy for part in parts], axis),
        logits=np.concatenate(logits, axis) if len(logits) == len(parts) else None,
    )


@dataclass(frozen=True)
class CacheRows:
    """Key and value rows of one branch, ready to append to another session's prefix of the same request."""

    layers: tuple[Rows, ...]
    """In the order of `past_names`: each dtype [Hkv, rows, D]."""

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.layers[0].shape[1])


def tiles(rows: int) -> int:
    """Prefix rows to allocate for `rows` committed ones: a multiple of TILE, at least one tile."""
    return max(1, -(-rows // TILE)) * TILE
