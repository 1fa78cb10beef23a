"""Random windows for sessions, and comparisons of statistics."""

from collections.abc import Sequence

import numpy as np

from lopa.runtime.contract import Bool, Floats, Statistics, WindowBatch

VOCABULARY = 975
"""Number of ids that the tiny tokenizer uses."""
TOLERANCE = 1e-5
"""Allowed difference of two float32 engines, relative to the largest value."""


def full_mask(shape: tuple[int, int, int]) -> Bool:
    return np.ones((*shape, shape[2]), np.bool_)


def block_causal_mask(shape: tuple[int, int, int], block: int) -> Bool:
    blocks = np.arange(shape[2]) // block
    return np.broadcast_to(blocks[:, None] >= blocks[None, :], (*shape, shape[2])).copy()


def scattered_mask(rng: np.random.Generator, shape: tuple[int, int, int]) -> Bool:
    """Return a mask with which each row attends to itself and some others."""
    return (rng.random((*shape, shape[2])) < 0.5) | np.eye(shape[2], dtype=np.bool_)


def random_mask(rng: np.random.Generator, shape: tuple[int, int, int]) -> Bool:
    """Return a full, block-causal or scattered mask; some branches are shorter and end in padding rows."""
    kind = rng.integers(3)
    if kind == 0:
        mask = full_mask(shape)
    elif kind == 1:
        mask = block_causal_mask(shape, int(rng.integers(1, 9)))
    else:
        mask = scattered_mask(rng, shape)
    width = shape[2]
    for branch in range(shape[1]):
        real = int(rng.integers(1, width + 1))
        mask[:, branch, :real, real:] = False
        mask[:, branch, real:] = np.eye(width, dtype=np.bool_)[real:]
    return mask


def random_batch(
    rng: np.random.Generator,
    requests: Sequence[int],
    branches: int,
    width: int,
    queries: int,
    *,
    starts: Sequence[int] | int = 0,
    mask: Bool | None = None,
) -> WindowBatch:
    """Return windows of random ids that begin at the positions `starts`, one for each request."""
    shape = (len(requests), branches, width)
    first = np.broadcast_to(np.asarray(starts), len(requests))
    return WindowBatch(
        requests=tuple(requests),
        input_ids=rng.integers(0, VOCABULARY, shape),
        position_ids=np.broadcast_to(first[:, None, None] + np.arange(width), shape).copy(),
        window_mask=scattered_mask(rng, shape) if mask is None else mask,
        logits_index=rng.integers(0, width, (*shape[:2], queries)),
        temperature=rng.uniform(0.5, 2, len(requests)).astype(np.float32),
    )


def batch_of_one(batch: WindowBatch, slot: int) -> WindowBatch:
    """Return the windows of one of the requests."""
    return batch.part(slice(slot, slot + 1))


def assert_close(found: Floats, expected: Floats, tolerance: float = TOLERANCE) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    allowed = tolerance * float(np.abs(expected).max())
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=allowed)


def assert_same_statistics(found: Statistics, expected: Statistics, tolerance: float = TOLERANCE) -> None:
    """Compare statistics up to rounding. Ids are compared if their probability clearly differs from the next
    one's."""
    assert_close(found.topk_logprobs, expected.topk_logprobs, tolerance)
    np.testing.assert_allclose(found.entropy, expected.entropy, rtol=0, atol=20 * tolerance)
    assert (found.logits is None) == (expected.logits is None)
    if found.logits is not None and expected.logits is not None:
        assert_close(found.logits, expected.logits, tolerance)
    allowed = 4 * tolerance * float(np.abs(expected.topk_logprobs).max())
    clear = -np.diff(expected.topk_logprobs, axis=-1) > allowed
    certain = clear & np.concatenate([np.ones_like(clear[..., :1]), clear[..., :-1]], axis=-1)
    assert certain.mean() > (0.9 if tolerance <= 1e-4 else 0.1)
    assert found.topk_ids.dtype == np.int64
    np.testing.assert_array_equal(found.topk_ids[..., :-1][certain], expected.topk_ids[..., :-1][certain])
