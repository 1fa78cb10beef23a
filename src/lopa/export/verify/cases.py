"""Random inputs for checking an engine: windows of many sizes, with and without committed prefixes.

A case has the same tokens in two forms. An engine receives prefix chunks to commit, then one window per branch. A
reference without a cache receives complete sequences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Bool, Int64, WindowBatch
from lopa.runtime.sessions.sequential_session import SequentialSession

MaskKind = Literal["full", "block_causal", "random"]
_TEMPERATURES = (1.0, 0.5, 0.8, 1.5)
_POSITIONS = 1024
"""Upper limit of positions. Far above it, float32 rotary angles of two correct engines differ visibly."""


@dataclass(frozen=True)
class CaseShape:
    """Sizes of one case. `prefixes` has the rows of every commit, in order, for each of the R requests."""

    prefixes: tuple[tuple[int, ...], ...]
    branches: int
    width: int
    queries: int
    mask: MaskKind
    padded: bool = False
    """True if windows of branches have different lengths, with padding rows after the shorter ones."""
    scattered: bool = False
    """True if positions have gaps, so that they differ from row numbers."""


SHAPES: tuple[CaseShape, ...] = (
    CaseShape(prefixes=((),), branches=1, width=1, queries=1, mask="full"),
    CaseShape(prefixes=((1,),), branches=1, width=1, queries=1, mask="full"),
    CaseShape(prefixes=((63,),), branches=1, width=1, queries=2, mask="full", scattered=True),
    CaseShape(prefixes=((),), branches=1, width=33, queries=33, mask="full"),
    CaseShape(prefixes=((),), branches=1, width=40, queries=40, mask="block_causal"),
    CaseShape(prefixes=((),), branches=3, width=17, queries=1, mask="random", scattered=True),
    CaseShape(prefixes=((),), branches=4, width=48, queries=20, mask="full", padded=True),
    CaseShape(prefixes=((),), branches=2, width=70, queries=9, mask="block_causal", padded=True, scattered=True),
    CaseShape(prefixes=((64,),), branches=1, width=32, queries=32, mask="full"),
    CaseShape(prefixes=((65,),), branches=5, width=32, queries=12, mask="block_causal"),
    CaseShape(prefixes=((40, 24, 5),), branches=2, width=7, queries=7, mask="random", scattered=True),
    CaseShape(prefixes=((100, 32),), branches=9, width=24, queries=5, mask="full", padded=True),
    CaseShape(prefixes=((150, 50),), branches=1, width=96, queries=64, mask="block_causal", scattered=True),
    CaseShape(prefixes=((), ()), branches=1, width=5, queries=3, mask="random", padded=True),
    CaseShape(prefixes=((30,), (31,)), branches=2, width=16, queries=16, mask="full"),
    CaseShape(prefixes=((), (1,), (129,)), branches=3, width=20, queries=4, mask="block_causal", padded=True),
    CaseShape(prefixes=((64,), (10, 3), ()), branches=1, width=1, queries=1, mask="full", scattered=True),
    CaseShape(prefixes=((70, 60), (128,), (2,), (64, 1)), branches=2, width=33, queries=8, mask="random", padded=True),
)


@dataclass(frozen=True, eq=False)
class Sequences:
    """One request as complete sequences, one per branch: L rows without padding, the P0 committed ones first."""

    input_ids: Int64
    """Token ids, [B, L]."""
    position_ids: Int64
    """Positions, [B, L]."""
    mask: Bool
    """Attention mask [B, L, L], True if the row (query) attends to the column (key). Every row attends to itself."""
    wanted: Int64
    """Rows whose next-token statistics are computed, [B, Q]."""


@dataclass(frozen=True, eq=False)
class CaseRequest:
    """Committed part of one request, the same for all branches."""

    chunks: tuple[int, ...]
    """Rows of each commit."""
    input_ids: Int64
    """Token ids, [P0], where P0 is the sum of `chunks`."""
    position_ids: Int64
    """Positions, [P0]."""

    @property
    def windows(self) -> Iterator[tuple[Int64, Int64]]:
        """Token ids and positions of every chunk, in order."""
        start = 0
        for rows in self.chunks:
            yield self.input_ids[start : start + rows], self.position_ids[start : start + rows]
            start += rows


@dataclass(frozen=True, eq=False)
class Case:
    """One check: commits of each request, then one forward of all requests."""

    shape: CaseShape
    requests: tuple[CaseRequest, ...]
    window: WindowBatch

    @cached_property
    def sequences(self) -> tuple[Sequences, ...]:
        """Every request as complete sequences. A row of a chunk attends to its own chunk and to earlier ones."""
        return tuple(self._sequences(slot, request) for slot, request in enumerate(self.requests))

    def prefix_batches(self, slot: int) -> Iterator[WindowBatch]:
        """Yield the windows [1, 1, rows] of a request's chunks. Each must be committed before the next."""
        for ids, positions in self.requests[slot].windows:
            yield WindowBatch(
                requests=(self.window.requests[slot],),
                input_ids=ids[None, None],
                position_ids=positions[None, None],
                window_mask=np.ones((1, 1, len(ids), len(ids)), np.bool_),
                logits_index=np.zeros((1, 1, 1), np.int64),
                temperature=np.ones(1, np.float32),
            )

    def _sequences(self, slot: int, request: CaseRequest) -> Sequences:
        window = self.window
        branches, width = window.input_ids.shape[1:]
        committed = len(request.input_ids)
        chunk_of_row = np.repeat(np.arange(len(request.chunks)), request.chunks)
        mask = np.zeros((branches, committed + width, committed + width), np.bool_)
        mask[:, :committed, :committed] = chunk_of_row[:, None] >= chunk_of_row[None, :]
        mask[:, committed:, :committed] = True
        mask[:, committed:, committed:] = window.window_mask[slot]
        return Sequences(
            input_ids=_append_window(request.input_ids, window.input_ids[slot]),
            position_ids=_append_window(request.position_ids, window.position_ids[slot]),
            mask=mask,
            wanted=window.logits_index[slot] + committed,
        )

    def commit_prefixes(self, session: SequentialSession) -> None:
        """Compute and commit the prefixes of all requests."""
        for slot, request in enumerate(self.window.requests):
            for batch in self.prefix_batches(slot):
                session.forward(batch)
                session.commit(request, 0, batch.input_ids.shape[-1])


def cases_from_manifest(manifest: Manifest, *, seed: int = 0) -> Iterator[Case]:
    """Yield one case per entry of SHAPES, with random tokens, positions, masks and temperatures. `seed` fixes them."""
    rng = np.random.default_rng(seed)
    for shape in SHAPES:
        yield _case_from_shape(shape, manifest.dimensions.vocab_size, rng)


def _case_from_shape(shape: CaseShape, vocab_size: int, rng: np.random.Generator) -> Case:
    requests, windows = [], []
    for chunks in shape.prefixes:
        committed = sum(chunks)
        positions = _positions(committed + shape.width, rng, scattered=shape.scattered)
        requests.append(CaseRequest(chunks, rng.integers(vocab_size, size=committed), positions[:committed]))
        windows.append(np.broadcast_to(positions[committed:], (shape.branches, shape.width)))
    rows = (len(requests), shape.branches, shape.width)
    masks = [_mask(shape, rng) for _ in range(rows[0] * rows[1])]
    batch = WindowBatch(
        requests=tuple(int(number) for number in rng.permutation(rows[0])),
        input_ids=rng.integers(vocab_size, size=rows),
        position_ids=np.stack(windows),
        window_mask=np.stack(masks).reshape(*rows, shape.width),
        logits_index=rng.integers(shape.width, size=(*rows[:2], shape.queries)),
        temperature=rng.choice(np.array(_TEMPERATURES, np.float32), size=rows[0]),
    )
    return Case(shape, tuple(requests), batch)


def _positions(rows: int, rng: np.random.Generator, *, scattered: bool) -> Int64:
    """Return ascending positions, [rows]: consecutive from a random start, or with gaps."""
    if scattered:
        return np.sort(rng.choice(_POSITIONS, size=rows, replace=False))
    start = int(rng.integers(_POSITIONS - rows))
    return np.arange(start, start + rows)


def _mask(shape: CaseShape, rng: np.random.Generator) -> Bool:
    """Return the mask [W, W] of a branch.

    Every row attends to itself. A padding row attends to no other row, and no other row attends to it.
    """
    width = shape.width
    if shape.mask == "full":
        mask = np.ones((width, width), np.bool_)
    elif shape.mask == "block_causal":
        block = (np.arange(width) + rng.integers(8)) // 8
        mask = block[:, None] >= block[None, :]
    else:
        mask = rng.random((width, width)) < 0.5
    length = int(rng.integers(1, width + 1)) if shape.padded else width
    mask[length:] = False
    mask[:, length:] = False
    return mask | np.eye(width, dtype=np.bool_)


def _append_window(prefix: Int64, window: Int64) -> Int64:
    """Return the prefix [P0] repeated before each window [B, W]: [B, P0 + W]."""
    repeated = np.broadcast_to(prefix, (len(window), len(prefix)))
    return np.concatenate([repeated, window], axis=1)


def random_windows(
    requests: Sequence[int],
    shape: tuple[int, int, int],
    vocabulary: int,
    rng: np.random.Generator,
    *,
    start: int,
) -> WindowBatch:
    """Return windows of the `shape` B, W, Q for every request, at positions from `start`, at temperature 1.

    Every row attends to its complete window. Ids and sampled positions are random.
    """
    branches, width, queries = shape
    rows = (len(requests), branches, width)
    return WindowBatch(
        requests=tuple(requests),
        input_ids=rng.integers(vocabulary, size=rows),
        position_ids=np.broadcast_to(np.arange(start, start + width), rows).copy(),
        window_mask=np.ones((*rows, width), np.bool_),
        logits_index=rng.integers(width, size=(len(requests), branches, queries)),
        temperature=np.ones(len(requests), np.float32),
    )
