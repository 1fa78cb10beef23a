"""The engine contract, version 1 (docs/contract.md): names, types and shapes of one forward.

R requests, B branches, W window rows a branch, P prefix rows, Q rows whose statistics are wanted, K candidates.
Knows arrays only: no engine, no file, no decoding rule.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract.forward_split import ForwardSplit

CONTRACT_VERSION = 1
TILE = 64
"""Prefix rows come in multiples of this, and at least one tile."""
TOP_K = 8
"""Candidates an engine returns for every wanted row."""

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating]
Rows = npt.NDArray[np.floating | np.uint16]
"""Key or value rows as caches hold them: float32, float16, or bfloat16's bits (lopa.runtime.contract.stored_floats)."""

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
    """All inputs of an engine, in order."""
    return [INPUT_IDS, POSITION_IDS, WINDOW_MASK, PREFIX_MASK, LOGITS_INDEX, TEMPERATURE, *past_names(layers)]


def output_names(layers: int, *, with_logits: bool) -> list[str]:
    """All outputs of an engine, in order; `logits` only in a bundle made for verification."""
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
