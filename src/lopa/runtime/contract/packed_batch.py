"""Packed rows: the input of a session's forward, without padding, and the same rows as padded windows.

R requests, S windows, N rows, M sampled rows, K candidates. A window is a run of rows that attend to each other and to
the cached rows of their request. The windows of a request follow each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import Bool, CanvasInputs, Float32, Int64, Rows, Statistics, WindowBatch


@dataclass(frozen=True, eq=False)
class CanvasRows:
    """Further inputs of packed rows in contract 2."""

    is_canvas: Bool
    """[N], as IS_CANVAS."""
    attention_start: Int64
    """[N], as ATTENTION_START."""
    soft_rows: Int64
    """Indices [N] among the rows that the request's last forward sampled, whose soft embeddings the session kept; -1
    for zeros."""
    uniform: Float32
    """[M], as UNIFORM."""

    @staticmethod
    def joined(parts: "Sequence[CanvasRows]") -> "CanvasRows":
        """Return the rows of several requests."""
        return CanvasRows(
            *(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(CanvasRows))
        )


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """The rows of one forward, window after window."""

    requests: tuple[int, ...]
    """R request numbers, chosen by the caller. The session keeps one prefix cache per request."""
    temperature: Float32
    """Sampling temperatures [R], 1 for greedy decoding."""
    slots: Int64
    """Index in `requests` of each window [S], ascending; every request has at least one window."""
    lengths: Int64
    """Number of rows of each window [S], at least 1."""
    input_ids: Int64
    """Token ids [N]."""
    position_ids: Int64
    """Absolute positions [N]."""
    mask: Bool
    """The windows' attention masks [L, L] in row-major order, one after another. True if the row (first L) may attend
    to the other row of its window (second L)."""
    sampled_rows: Int64
    """Rows whose statistics are computed [M], at least one, ordered by window."""
    canvas: CanvasRows | None = None
    """Inputs of contract 2; None in contract 1."""

    @cached_property
    def starts(self) -> Int64:
        """First row of each window [S]."""
        starts: Int64 = self.lengths.cumsum() - self.lengths
        return starts

    @cached_property
    def windows(self) -> Int64:
        """Number of windows of each request [R]."""
        return np.bincount(self.slots, minlength=len(self.requests))

    @property
    def padded_rows(self) -> int:
        """Number of rows of the same batch as padded windows."""
        return len(self.requests) * int(self.windows.max()) * int(self.lengths.max())

    @cached_property
    def window_numbers(self) -> Int64:
        """Number of each window among its request's windows [S], from 0."""
        first: Int64 = np.cumsum(self.windows) - self.windows
        return np.arange(len(self.slots)) - first[self.slots]


def check_packed(batch: PackedBatch) -> None:
    """Raise ValueError unless the shapes and indices of `batch` agree and its requests are distinct."""
    requests, rows, steps = len(batch.requests), int(batch.lengths.sum()), batch.slots[1:] - batch.slots[:-1]
    sampled = batch.sampled_rows
    if not 0 < requests == len(set(batch.requests)):
        wrong, expected = "requests", "distinct numbers, at least one"
    elif batch.temperature.shape != (requests,):
        wrong, expected = "temperature", f"shape {(requests,)}"
    elif not (
        len(batch.slots)
        and (batch.slots[0], batch.slots[-1]) == (0, requests - 1)
        and ((steps == 0) | (steps == 1)).all()
    ):
        wrong, expected = "slots", "the index of every request, ascending"
    elif batch.lengths.shape != batch.slots.shape or batch.lengths.min() < 1:
        wrong, expected = "lengths", "one or more per window"
    elif batch.input_ids.shape != (rows,):
        wrong, expected = "input_ids", f"shape {(rows,)}"
    elif batch.position_ids.shape != (rows,):
        wrong, expected = "position_ids", f"shape {(rows,)}"
    elif batch.mask.shape != (batch.lengths @ batch.lengths,):
        wrong, expected = "mask", "the squares of all windows"
    elif not (
        sampled.size
        and 0 <= sampled.min() <= sampled.max() < rows
        and ((sampled[1:] >= sampled[:-1]).all() or (np.diff(_windows_of_rows(batch, sampled)) >= 0).all())
    ):
        wrong, expected = "sampled_rows", f"rows from 0 to {rows - 1}, ordered by window"
    else:
        return
    raise ValueError(f"received {wrong} {getattr(batch, wrong)}, expected {expected}")


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """A packed batch as padded windows."""

    batch: WindowBatch
    """Windows [R, B, W]. A padding row has id and position 0 and attends to itself; missing windows are padding."""
    places: Int64 | None
    """Index of each sampled row [M] among the sampled columns [R x B x Q]; None if they are all columns, in order."""

    def packed(self, statistics: Statistics) -> Statistics:
        """Return the statistics [M, ...] of the sampled rows from those of the padded forward [R, B, Q, ...]."""
        places = self.places

        def rows(array: npt.NDArray[Any]) -> Any:
            flat = array.reshape(-1, *array.shape[3:])
            return flat if places is None else flat.take(places, axis=0)

        return statistics.mapped(rows)


def padded_batch(batch: PackedBatch) -> PaddedBatch:
    """Return `batch` as windows of equal length, as many for every request."""
    # Of few numbers, max of a list is faster than of an array.
    requests, branches, width = len(batch.requests), max(batch.windows.tolist()), max(batch.lengths.tolist())
    shape = (requests, branches, width)
    if batch.input_ids.size == requests * branches * width:
        input_ids, positions = batch.input_ids.reshape(shape), batch.position_ids.reshape(shape)
        mask = batch.mask.reshape(*shape, width)
        if not len(batch.sampled_rows) % (requests * branches):
            sampled = batch.sampled_rows.reshape(requests, branches, -1) - batch.starts.reshape(requests, branches, 1)
            if sampled.min() >= 0 and sampled.max() < width:  # as many rows of every window
                window_batch = WindowBatch(batch.requests, input_ids, positions, mask, sampled, batch.temperature)
                return PaddedBatch(window_batch, None)
    else:
        input_ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        mask = np.zeros((*shape, width), np.bool_)
        mask[..., np.arange(width), np.arange(width)] = True
        is_first = (np.diff(batch.slots) != 0) | (np.diff(batch.lengths) != 0)
        begin = start = 0
        # Windows of equal length of one request are copied together.
        for first, stop in pairwise((0, *(np.flatnonzero(is_first) + 1).tolist(), len(batch.slots))):
            count, length, number = stop - first, int(batch.lengths[first]), int(batch.window_numbers[first])
            own = (int(batch.slots[first]), slice(number, number + count), slice(length))
            rows, end = slice(start, start := start + count * length), begin + count * length**2
            input_ids[own] = batch.input_ids[rows].reshape(count, length)
            positions[own] = batch.position_ids[rows].reshape(count, length)
            mask[(*own, slice(length))] = batch.mask[begin:end].reshape(count, length, length)
            begin = end
    windows = _windows_of_rows(batch, batch.sampled_rows)
    counts = np.bincount(windows, minlength=len(batch.slots))
    index, queries = batch.sampled_rows - batch.starts[windows], max(counts.tolist())
    if index.size == requests * branches * queries:
        logits_index, places = index, None
    else:
        first_column = (batch.slots * branches + batch.window_numbers) * queries - (np.cumsum(counts) - counts)
        places = first_column[windows] + np.arange(index.size)
        logits_index = np.zeros(requests * branches * queries, np.int64)
        logits_index[places] = index
    window_batch = WindowBatch(
        batch.requests, input_ids, positions, mask, logits_index.reshape(*shape[:2], queries), batch.temperature
    )
    return PaddedBatch(window_batch, places)


def with_canvas_inputs(padded: PaddedBatch, batch: PackedBatch, soft: Rows) -> PaddedBatch:
    """Return `padded` with the inputs of contract 2 of `batch`, whose rows have the embeddings `soft` [N, H]."""
    canvas, inputs = batch.canvas, padded.batch
    if canvas is None:
        raise ValueError("received a batch without canvas rows, expected one of contract 2")
    requests, branches, width = inputs.input_ids.shape
    first = (batch.slots * branches + batch.window_numbers) * width - batch.starts
    rows = np.repeat(first, batch.lengths) + np.arange(batch.input_ids.size)

    def placed(values: npt.NDArray[Any], places: Int64 | None, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        result = np.zeros((np.prod(shape), *values.shape[1:]), values.dtype)
        result[slice(None) if places is None else places] = values
        return result.reshape(*shape, *values.shape[1:])

    window = (requests, branches, width)
    return replace(
        padded,
        batch=replace(
            inputs,
            canvas=CanvasInputs(
                placed(canvas.is_canvas, rows, window),
                placed(canvas.attention_start, rows, window),
                placed(soft, rows, window),
                placed(canvas.uniform, padded.places, inputs.logits_index.shape),
            ),
        ),
    )


def packed_batch(batch: WindowBatch) -> PackedBatch:
    """Return padded windows as a packed batch with the same rows, padding included."""
    requests, branches, width = batch.input_ids.shape
    windows = requests * branches
    return PackedBatch(
        requests=batch.requests,
        temperature=batch.temperature,
        slots=np.repeat(np.arange(requests), branches),
        lengths=np.full(windows, width),
        input_ids=batch.input_ids.ravel(),
        position_ids=batch.position_ids.ravel(),
        mask=batch.window_mask.ravel(),
        sampled_rows=(batch.logits_index.reshape(windows, -1) + width * np.arange(windows)[:, None]).ravel(),
    )


def _windows_of_rows(batch: PackedBatch, rows: Int64) -> Int64:
    """Return the window of each of `rows` [n]."""
    return batch.starts.searchsorted(rows, "right") - 1
