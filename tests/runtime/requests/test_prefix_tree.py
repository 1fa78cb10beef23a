"""The tree of prefixes, compared with a plain model of it under random use."""

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from lopa.runtime.contract import CacheRows
from lopa.runtime.requests.prefix_tree import Path, PrefixTree

Blocks = tuple[bytes, ...]


def rows_of(place: tuple[Hashable, Blocks]) -> CacheRows:
    """Return rows that belong to one place only; their number is the number of bytes of the last block."""
    seed = abs(hash(place)) % 2**32
    rng = np.random.default_rng(seed)
    return CacheRows(tuple(rng.random((2, len(place[1][-1]), 3), np.float32) for _ in range(2)))


class PlainTree:
    """The same rules over a flat dictionary: place to users and time of last use."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.places: dict[tuple[Hashable, Blocks], list[int]] = {}
        self.time = 0
        self.evicted: list[tuple[Hashable, Blocks]] = []

    @property
    def tokens(self) -> int:
        return sum(len(blocks[-1]) for _, blocks in self.places)

    def found(self, key: Hashable, blocks: Blocks) -> Blocks:
        number = 0
        while number < len(blocks) and (key, blocks[: number + 1]) in self.places:
            number += 1
        return blocks[:number]

    def use(self, key: Hashable, blocks: Blocks, by: int) -> None:
        for number in range(len(blocks), 0, -1):
            place = self.places[key, blocks[:number]]
            place[0] += by
            self.time += 1
            place[1] = self.time

    def add(self, key: Hashable, blocks: Blocks) -> bool:
        used = sum(len(each[1][-1]) for each, (users, _) in self.places.items() if users)
        if used + len(blocks[-1]) > self.max_tokens:
            return False
        while self.tokens + len(blocks[-1]) > self.max_tokens:
            unused = [(time, place) for place, (users, time) in self.places.items() if not users]
            _, oldest = min(unused)
            assert not any(each != oldest and each[0] == oldest[0] and each[1][: len(oldest[1])] == oldest[1]
                           for each in self.places)  # fmt: skip
            del self.places[oldest]
            self.evicted.append(oldest)
        self.places[key, blocks] = [1, 0]
        return True


@pytest.mark.parametrize("seed", range(4))
def test_random_use_matches_a_plain_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    limit = int(rng.choice([0, 3, 12, 40]))
    tree, plain = PrefixTree(limit), PlainTree(limit)
    paths: list[tuple[Path, Blocks]] = []
    hits = tokens = 0

    def some_blocks() -> Blocks:
        return tuple(bytes([int(rng.integers(2))] * int(rng.integers(1, 4))) for _ in range(int(rng.integers(0, 6))))

    for _ in range(400):
        action = rng.random()
        if action < 0.35 and len(paths) < 5:
            key, blocks = str(rng.choice(["a", "b"])), some_blocks()
            expected = plain.found(key, blocks)
            assert tree.count_tokens(key, blocks) == sum(map(len, expected))
            path = tree.acquire(key, blocks)
            plain.use(key, expected, 1)
            assert path.tokens == sum(map(len, expected))
            if expected:
                own = [rows_of((key, expected[: number + 1])) for number in range(len(expected))]
                for found, rows in zip(path.rows, own, strict=True):
                    np.testing.assert_array_equal(found.layers, rows.layers)  # type: ignore[attr-defined]
                hits, tokens = hits + 1, tokens + path.tokens
            paths.append((path, expected))
        elif action < 0.8 and paths:
            number = int(rng.integers(len(paths)))
            path, blocks = paths[number]
            longer = (*blocks, *(some_blocks()[:1] or (b"\0",)))
            key = path.key
            there = (key, longer) in plain.places
            assert tree.follow(path, longer[-1]) == there
            if there:
                plain.places[key, longer][0] += 1
                paths[number] = (path, longer)
            else:
                space = tree.has_space(len(longer[-1]))
                assert space == plain.add(key, longer)
                if space:
                    tree.add(path, longer[-1], rows_of((key, longer)))
                    paths[number] = (path, longer)
        elif paths:
            path, blocks = paths.pop(int(rng.integers(len(paths))))
            tree.release(path)
            plain.use(path.key, blocks, -1)
            assert path.tokens == 0
        assert tree.tokens == plain.tokens <= limit
        assert tree.evictions == len(plain.evicted)
        assert (tree.hits, tree.tokens_found) == (hits, tokens)
    assert bool(tree.evictions) == (limit > 0)
    for path, blocks in paths:
        tree.release(path)
        plain.use(path.key, blocks, -1)
    for key, blocks in plain.places:
        assert tree.count_tokens(key, blocks) == sum(map(len, blocks))


def test_used_blocks_are_not_evicted_and_keys_leave_nothing_behind() -> None:
    tree = PrefixTree(4)
    for number in range(100):  # as many keys as tenants
        path = tree.acquire(number, ())
        tree.add(path, b"1234", rows_of((number, (b"1234",))))
        assert not tree.has_space(1)
        tree.release(path)
    roots: Any = tree._roots
    assert list(roots) == [99]
    assert (tree.tokens, tree.evictions) == (4, 99)


def test_a_block_whose_beginning_was_evicted_is_not_found() -> None:
    """A path without nodes is no anchor: its first block can still be added after all others went."""
    tree = PrefixTree(2)
    empty = tree.acquire("a", (b"x",))
    other = tree.acquire("b", ())
    tree.add(other, b"y", rows_of(("b", (b"y",))))
    tree.add(empty, b"x", rows_of(("a", (b"x",))))
    tree.release(other)
    tree.add(empty, b"z", rows_of(("a", (b"x", b"z"))))
    assert tree.evictions == 1
    assert tree.count_tokens("b", (b"y",)) == 0
    assert tree.count_tokens("a", (b"x", b"z")) == 2
