"""The engine contract, version 1 (docs/concepts/contract.md): names, types and shapes of one forward.

R requests, B branches, W query tokens per branch, P cached tokens, Q sampled positions, K candidates. This module only
defines arrays. It uses no device, no file and no decoding rule.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

CONTRACT_VERSION, CANVAS_CONTRACT = 1, 2
"""Versions of the contract. The second one adds the inputs and outputs of models with canvases (DiffusionGemma)."""
TILE = 64
"""Granularity of the prefix cache, in rows. Every cache has at least one tile."""
TOP_K = 8
"""Candidates returned per sampled position."""

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating]
Rows = npt.NDArray[np.floating | np.uint16]
"""Key or value rows as stored in caches: float32, float16, or bfloat16 bits."""
_ALL = slice(None)

_BFLOAT16_BITS = np.dtype(np.uint16)


_QUIET_NAN = np.uint32(0x7FC0)


INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
ROTARY_COS = "rotary_cos"
"""float32 [R, B, W, rotary size / 2]: cosines of each row's rotary angles. A graph may take them and ROTARY_SIN in
place of POSITION_IDS (lopa.runtime.contract.rotary).
"""
ROTARY_SIN = "rotary_sin"
"""float32 [R, B, W, rotary size / 2]: sines of each row's rotary angles."""
WINDOW_MASK = "window_mask"
PREFIX_MASK = "prefix_mask"
LOGITS_INDEX = "logits_index"
TEMPERATURE = "temperature"
TOPK_IDS = "topk_ids"
TOPK_LOGPROBS = "topk_logprobs"
ENTROPY = "entropy"
LOGITS = "logits"
IS_CANVAS = "is_canvas"
"""bool [R, B, W]: True for rows of a canvas, False for rows that are encoded causally. Contract 2, as those below."""
ATTENTION_START = "attention_start"
"""int64 [R, B, W]: first position that a row attends to in layers with a sliding window."""
SOFT_EMBEDDINGS = "soft_embeddings"
"""dtype [R, B, W, H]: mean embeddings of the step before, zeros in a canvas's first step and in other rows."""
UNIFORM = "uniform"
"""float32 [R, B, Q]: numbers from 0 to 1, exclusive, by which tokens are drawn."""
DRAWN_IDS = "drawn_ids"
"""int64 [R, B, Q]: the first token at which the cumulative probability exceeds the uniform number."""
NEXT_SOFT_EMBEDDINGS = "next_soft_embeddings"
"""dtype [R, B, Q, H]: mean of the embeddings, weighted by the probabilities at the temperature."""
CANVAS_INPUTS = (IS_CANVAS, ATTENTION_START, SOFT_EMBEDDINGS, UNIFORM)
CANVAS_OUTPUTS = (DRAWN_IDS, NEXT_SOFT_EMBEDDINGS)
SAMPLED_ROWS = "sampled_rows"
"""Inputs of a twin for CUDA, with packed rows, have the names from here on, and some of those above."""
ATTENTION_WORK = "attention_work"
ATTENTION_SCRATCH = "attention_scratch"
CACHE = "cache"


def past_names(layers: int) -> list[str]:
    """Return the names of the prefix cache inputs, key before value, layer by layer. Each is dtype [R, Hkv, P, D]."""
    return [f"past_key_values.{i}.{part}" for i in range(layers) for part in ("key", "value")]


def window_names(layers: int) -> list[str]:
    """Return the names of the new key and value outputs, in the order of `past_names`. Each is dtype [R, B, Hkv, W,
    D].
    """
    return [f"window_key_values.{i}.{part}" for i in range(layers) for part in ("key", "value")]


def input_names(layers: int) -> list[str]:
    """Return the names of all inputs of a graph, in order."""
    return [INPUT_IDS, POSITION_IDS, WINDOW_MASK, PREFIX_MASK, LOGITS_INDEX, TEMPERATURE, *past_names(layers)]


def output_names(layers: int, *, with_logits: bool) -> list[str]:
    """Return the names of all outputs of a graph, in order. `logits` exists only in bundles made for verification."""
    statistics = [TOPK_IDS, TOPK_LOGPROBS, ENTROPY]
    return [*statistics, *window_names(layers), *([LOGITS] if with_logits else [])]


@dataclass(frozen=True, eq=False)
class CanvasInputs:
    """Further inputs of a forward in contract 2."""

    is_canvas: Bool
    """[R, B, W], as IS_CANVAS."""
    attention_start: Int64
    """[R, B, W], as ATTENTION_START."""
    soft_embeddings: Rows
    """[R, B, W, H], as SOFT_EMBEDDINGS."""
    uniform: Float32
    """[R, B, Q], as UNIFORM."""

    def part(self, requests: slice, branches: slice) -> "CanvasInputs":
        """Return a view of the inputs of some branches of some requests."""
        return CanvasInputs(*(array[requests, branches] for array in self.arrays().values()))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by the names of inputs."""
        arrays = (self.is_canvas, self.attention_start, self.soft_embeddings, self.uniform)
        return dict(zip(CANVAS_INPUTS, arrays, strict=True))


@dataclass(frozen=True)
class WindowBatch:
    """Input of one forward: the windows of every branch of every request.

    A padding row (after a shorter branch) attends to itself only, and no real row attends to it.
    """

    requests: tuple[int, ...]
    """R request numbers, chosen by the caller. The session keeps one prefix cache per request."""
    input_ids: Int64
    """Token ids [R, B, W]."""
    position_ids: Int64
    """Absolute positions [R, B, W]."""
    window_mask: Bool
    """Attention mask [R, B, W, W]. True if the row (query) may attend to the column (key) of its own branch."""
    logits_index: Int64
    """Sampled positions [R, B, Q], as indices of window rows. Their next-token statistics are computed."""
    temperature: Float32
    """Sampling temperatures [R], 1 for greedy decoding."""
    canvas: CanvasInputs | None = None
    """Inputs of contract 2; None in contract 1."""

    def part(self, requests: slice = _ALL, branches: slice = _ALL) -> "WindowBatch":
        """Return a view of the windows of some branches of some requests."""
        some = (requests, branches)
        return WindowBatch(
            requests=self.requests[requests],
            input_ids=self.input_ids[some],
            position_ids=self.position_ids[some],
            window_mask=self.window_mask[some],
            logits_index=self.logits_index[some],
            temperature=self.temperature[requests],
            canvas=None if self.canvas is None else self.canvas.part(*some),
        )


def check_batch(batch: WindowBatch) -> None:
    """Raise ValueError unless the shapes of `batch` agree and its requests are distinct."""
    if batch.input_ids.ndim != 3 or 0 in batch.input_ids.shape:
        raise ValueError(f"received input_ids of shape {batch.input_ids.shape}, expected [R, B, W] without empty axes")
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
    """Time that one device spent on its part of a forward over several devices."""

    device: str
    branches: int
    seconds: float
    """Forward time on the device, without waiting for earlier work there."""


@dataclass(frozen=True)
class ForwardSplit:
    """Timing of a forward over several devices."""

    devices: tuple[DeviceTime, ...]
    """Devices that computed a part, in the order of the branches."""
    gather: float
    """Seconds beyond the slowest device: pending commits, dispatch, waiting and concatenation."""


@dataclass(frozen=True)
class Statistics:
    """Output of one forward, on the host."""

    topk_ids: Int64
    """Candidate token ids [R, B, Q, K], most probable first. Ties are ordered by token id."""
    topk_logprobs: Float32
    """Log-probabilities [R, B, Q, K] after temperature."""
    entropy: Float32
    """Entropy [R, B, Q] over the whole vocabulary, in nats."""
    logits: Float32 | None = None
    """Logits [R, B, Q, V] before temperature. Only bundles made with --with-logits have them."""
    drawn_ids: Int64 | None = None
    """[R, B, Q], as DRAWN_IDS; None in contract 1."""
    soft_embeddings: Rows | None = None
    """[R, B, Q, H], as NEXT_SOFT_EMBEDDINGS; None in contract 1, and in results of sessions, which keep them."""
    split: ForwardSplit | None = None
    """Timing per device, from a session over several devices."""

    def part(self, requests: slice = _ALL, branches: slice = _ALL, positions: slice = _ALL) -> "Statistics":
        """Return a view of the statistics of some sampled positions of some branches of some requests."""
        return self.mapped(lambda array: array[requests, branches, positions])

    def mapped(self, change: Callable[[npt.NDArray[Any]], Any]) -> "Statistics":
        """Return the statistics with `change` applied to every array."""
        logits = None if self.logits is None else change(self.logits)
        drawn = None if self.drawn_ids is None else change(self.drawn_ids)
        soft = None if self.soft_embeddings is None else change(self.soft_embeddings)
        ids, logprobs, entropy = change(self.topk_ids), change(self.topk_logprobs), change(self.entropy)
        return Statistics(ids, logprobs, entropy, logits, drawn, soft, self.split)

    def with_canvas(self, drawn_ids: Int64, soft_embeddings: Rows | None) -> "Statistics":
        """Return these statistics with those of contract 2."""
        return replace(self, drawn_ids=drawn_ids, soft_embeddings=soft_embeddings)

    @staticmethod
    def joined(parts: "Sequence[Statistics]", across: int | None = None) -> "Statistics":
        """Concatenate the statistics of a forward's parts (at least one), ordered by request, then by branch.

        Every `across` consecutive parts hold branches of the same requests. With None, all parts do.
        """
        across = len(parts) if across is None else across
        rows = [_concatenated(parts[first : first + across], axis=1) for first in range(0, len(parts), across)]
        return _concatenated(rows, axis=0)


def statistics_of_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> Statistics:
    """Return the statistics among the outputs of a graph by name."""
    logits, drawn, soft = (arrays.get(name) for name in (LOGITS, *CANVAS_OUTPUTS))
    return Statistics(arrays[TOPK_IDS], arrays[TOPK_LOGPROBS], arrays[ENTROPY], logits, drawn, soft)


def _concatenated(parts: Sequence[Statistics], *, axis: int) -> Statistics:
    if len(parts) == 1:
        return parts[0]
    joined: dict[str, Any] = {}
    for name in (each.name for each in fields(Statistics) if each.name != "split"):
        arrays = [getattr(part, name) for part in parts]
        joined[name] = None if any(array is None for array in arrays) else np.concatenate(arrays, axis)
    return Statistics(**joined)


@dataclass(frozen=True)
class CacheRows:
    """Key and value rows of one branch, ready to append to another session's prefix of the same request."""

    layers: tuple[Rows, ...]
    """One array per name in `past_names`. Each is dtype [Hkv, rows, D]."""

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.layers[0].shape[1])

    @staticmethod
    def joined(parts: "Sequence[CacheRows]") -> "CacheRows":
        """Return the rows of `parts`, at least one, in one piece."""
        layers = zip(*(part.layers for part in parts), strict=True)
        return CacheRows(tuple(arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1) for arrays in layers))


def tiles(rows: int) -> int:
    """Return the number of prefix rows to allocate for `rows` committed rows: a multiple of TILE, at least one tile."""
    return max(1, -(-rows // TILE)) * TILE


def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy type that stores numbers of type `name` (float32, float16 or bfloat16)."""
    return _BFLOAT16_BITS if name == "bfloat16" else np.dtype(name)


def float32_from_stored(stored: npt.NDArray[Any]) -> Float32:
    """Return the exact values as float32, in the same shape. A float32 array is returned unchanged."""
    if stored.dtype != _BFLOAT16_BITS:
        return stored.astype(np.float32, copy=False)
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


def stored_from_float32(values: Float32, dtype: np.dtype[Any]) -> Rows:
    """Round `values` to `dtype`: to nearest, ties to even."""
    if dtype != _BFLOAT16_BITS:
        return values.astype(dtype, copy=False)
    bits = values.view(np.uint32)
    # Add just under half of the last kept bit, plus one if that bit is odd. The carry then rounds to nearest even.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), _QUIET_NAN, rounded).astype(_BFLOAT16_BITS)
