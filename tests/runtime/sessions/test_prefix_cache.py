import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lopa.runtime.contract import TILE, Floats
from lopa.runtime.sessions.prefix_cache import CacheShape, PrefixCache, PrefixStack

SHAPE = CacheShape(arrays=4, kv_heads=2, head_size=6, dtype=np.dtype(np.float32))


def random_rows(rng: np.random.Generator, count: int, shape: CacheShape = SHAPE) -> list[Floats]:
    size = (shape.kv_heads, count, shape.head_size)
    return [rng.standard_normal(size).astype(shape.dtype) for _ in range(shape.arrays)]


def cache_of(rng: np.random.Generator, count: int) -> PrefixCache:
    cache = PrefixCache(SHAPE)
    cache.append(random_rows(rng, count))
    return cache


@given(counts=st.lists(st.integers(0, 2 * TILE + 1), max_size=6), seed=st.integers(0, 2**32 - 1))
def test_append_keeps_order_and_zero_padding(counts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache = PrefixCache(SHAPE)
    pieces = [random_rows(rng, count) for count in counts]
    for piece in pieces:
        cache.append(piece)
    total = sum(counts)
    assert cache.length == total
    assert cache.capacity == max(TILE, -(-total // TILE) * TILE)
    np.testing.assert_array_equal(cache.prefix.mask, [np.arange(cache.capacity) < total])
    for i, array in enumerate(cache.prefix.arrays):
        expected = np.zeros((1, 2, cache.capacity, 6), np.float32)
        expected[0, :, :total] = np.concatenate([piece[i] for piece in pieces] or [expected[0, :, :0]], axis=1)
        np.testing.assert_array_equal(array, expected)
        assert array.flags.c_contiguous


@given(
    steps=st.lists(st.tuples(st.integers(0, 2 * TILE + 1), st.floats(0, 1)), max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_shortened_cache_equals_one_without_the_dropped_rows(steps: list[tuple[int, float]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache = PrefixCache(SHAPE)
    kept = random_rows(rng, 0)
    for count, share in steps:
        new = random_rows(rng, count)
        cache.append(new)
        left = int(share * cache.length)
        cache.shorten(left)
        kept = [np.concatenate(both, axis=1)[:, :left] for both in zip(kept, new, strict=True)]
    fresh = PrefixCache(SHAPE)
    fresh.append(kept)
    assert cache.length == fresh.length
    np.testing.assert_array_equal(cache.prefix.block, fresh.prefix.block)
    np.testing.assert_array_equal(cache.prefix.mask, fresh.prefix.mask)


def test_rows_are_copied() -> None:
    rows = random_rows(np.random.default_rng(0), 3)
    cache = PrefixCache(SHAPE)
    cache.append(rows)
    expected = rows[0].copy()
    rows[0][...] = 7
    np.testing.assert_array_equal(cache.prefix.arrays[0][0, :, :3], expected)


def test_mismatched_rows_raise_and_change_nothing() -> None:
    rng = np.random.default_rng(0)
    cache = cache_of(rng, 5)
    before = [array.copy() for array in cache.prefix.arrays]
    good = random_rows(rng, 70)
    wrong: list[list[Floats]] = [
        [],
        good[:-1],
        [*good[:-1], good[0][:, :69]],
        [*good[:-1], good[0][:1]],
        [*good[:-1], good[0][:, :, :5]],
        [*good[:-1], good[0].astype(np.float16)],
    ]
    for rows in wrong:
        with pytest.raises(ValueError, match=r"received rows .* expected 4 arrays of float32 \[2, n, 6\]"):
            cache.append(rows)
        assert cache.length == 5
        assert cache.capacity == TILE
        for array, old in zip(cache.prefix.arrays, before, strict=True):
            np.testing.assert_array_equal(array, old)


@given(
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 100), st.floats(0, 1) | st.none()), max_size=6),
    orders=st.lists(st.permutations([0, 1, 2]), min_size=7, max_size=7),
    seed=st.integers(0, 2**32 - 1),
)
def test_reused_stack_equals_a_fresh_one(
    steps: list[tuple[int, int, float | None]], orders: list[list[int]], seed: int
) -> None:
    """Between forwards, rows are appended, or dropped and then appended."""
    rng = np.random.default_rng(seed)
    caches = [cache_of(rng, 3 * i) for i in range(3)]
    kept = PrefixStack(SHAPE)
    for order, (which, count, share) in zip(orders, [(0, 0, None), *steps], strict=False):
        if share is not None:
            left = int(share * caches[which].length)
            caches[which].shorten(left)
            kept.shorten(caches[which], left)
        caches[which].append(random_rows(rng, count))
        chosen = [caches[i] for i in order]
        stack = kept.prefix(chosen)
        rows = max(cache.capacity for cache in chosen)
        assert stack.mask.shape == (3, rows)
        for slot, cache in enumerate(chosen):
            np.testing.assert_array_equal(stack.mask[slot], np.arange(rows) < cache.length)
            for array, own in zip(stack.arrays, cache.prefix.arrays, strict=True):
                assert array.flags.c_contiguous
                np.testing.assert_array_equal(array[slot, :, : cache.capacity], own[0])
                assert not array[slot, :, cache.capacity :].any()


def test_stack_is_reused_until_capacity_grows() -> None:
    rng = np.random.default_rng(0)
    caches = [cache_of(rng, 5), cache_of(rng, 70)]
    stack = PrefixStack(SHAPE)
    first = stack.prefix(caches)
    caches[0].append(random_rows(rng, 40))
    assert stack.prefix(caches) is first
    caches[1].append(random_rows(rng, 60))
    assert stack.prefix(caches) is not first
