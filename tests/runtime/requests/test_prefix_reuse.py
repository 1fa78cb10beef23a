"""The rule for rows that requests share: by window, alignment, options and salt. The blocks that a request stores."""

from typing import Any

import numpy as np
import pytest
from tests.params import params_of

from lopa.runtime.contract import CacheRows, Int64
from lopa.runtime.options import DecodingParams
from lopa.runtime.requests.prefix_tree import CAUSAL_BLOCK, PrefixReuse, PrefixTree, prefix_reuse
from lopa.runtime.requests.running_loop import RequestCache

BLOCKS: dict[str, Any] = {
    "attention": "block_causal",
    "alignment": "absolute",
    "block_size": 8,
    "strategy": "threshold",
}
PROMPT: dict[str, Any] = {"attention": "block_causal", "strategy": "d2f"}
SLIDING: dict[str, Any] = {"attention": "causal", "alignment": "sliding", "strategy": "threshold", "block_size": 5}


def key_of(params: DecodingParams, shift: int = 1, salt: str | None = None, prompt: int = 50) -> object:
    found = prefix_reuse(prompt, params, shift, salt)
    assert found is not None
    return found.key


@pytest.mark.parametrize("options", [BLOCKS, SLIDING])
@pytest.mark.parametrize(
    "other",
    [
        {"temperature": 0.7, "seed": 9},
        {"strategy": "vanilla"},
        {"strategy": "lopa", "branches": 3},
        {"max_new_tokens": 5},
        {"stop": ("x",), "stop_at_eos": False},
        {"regex": "a+"},
        {"logprobs": True},
    ],
    ids=str,
)
def test_options_that_change_no_row_share_blocks(options: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of(params_of(**options)) == key_of(params_of(**{**options, **other}))


def test_rows_by_what_they_attend_to() -> None:
    for shift in (0, 1):
        keys = [
            key_of(params_of(**options), shift) for options in (BLOCKS, {**BLOCKS, "block_size": 16}, SLIDING, PROMPT)
        ]
        assert len(set(keys)) == 4
    assert key_of(params_of(**SLIDING)) == key_of(params_of(**{**SLIDING, "block_size": 32}))
    assert key_of(params_of(**BLOCKS)) == key_of(params_of(**{**BLOCKS, "cache": "sub_block", "sub_block": 4}))


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "full"},
        {**BLOCKS, "attention": "full"},
        {**BLOCKS, "reference": True},
        {**PROMPT, "reference": True},
        {"strategy": "threshold", "cache": "prefix", "attention": "full"},
        {"strategy": "threshold", "cache": "dual", "attention": "full"},
        {"strategy": "dream"},
    ],
    ids=str,
)
def test_rows_that_depend_on_the_round_are_not_reused(options: dict[str, Any]) -> None:
    assert prefix_reuse(50, params_of(**options), 1) is None
    assert prefix_reuse(50, params_of(**options), 0) is None


def test_the_last_row_is_computed_again_if_it_predicts_a_masked_position() -> None:
    for shift, limits in ((0, {7: 0, 8: 8, 9: 8, 16: 16}), (1, {7: 0, 8: 0, 9: 8, 16: 8, 17: 16})):
        for prompt, limit in limits.items():
            found = prefix_reuse(prompt, params_of(**BLOCKS), shift)
            assert found is not None
            assert found.limit == limit == sum(len(each) // 8 for each in found.blocks(np.arange(prompt)))


def test_statistics_of_a_whole_prompt_depend_on_the_temperature() -> None:
    cold, warm = params_of(**PROMPT), params_of(**PROMPT, temperature=0.5)
    assert key_of(cold, 1) != key_of(warm, 1)
    assert key_of(cold, 0) == key_of(warm, 0)
    assert key_of(cold, 1) == key_of(params_of(**PROMPT, temperature=1.0), 1)


@pytest.mark.parametrize("options", [BLOCKS, SLIDING, PROMPT])
def test_salts_share_nothing(options: dict[str, Any]) -> None:
    params = params_of(**options)
    assert len({key_of(params, 1, salt) for salt in (None, "a", "b")}) == 3


# Stored blocks


class KeptPositions:
    """A session whose rows are the positions of a request's rows. It notes the positions that it keeps."""

    def __init__(self, reads: list[int] | None = None) -> None:
        self.reads = reads

    def keep_rows(self, _: int, start: int, count: int) -> CacheRows:
        if self.reads is not None:
            self.reads.append(start)
        positions = np.arange(start, start + count, dtype=np.float32)
        return CacheRows((np.tile(positions[None, :, None], (2, 1, 3)),))

    def append_kept(self, _: int, rows: list[CacheRows]) -> None:
        self.rows = CacheRows.joined(rows)

    def prefix_length(self, _: int) -> int:
        return self.rows.count


def cache_of(tree: PrefixTree, reuse: PrefixReuse | None, ids: Int64, reads: list[int] | None = None) -> RequestCache:
    session: Any = KeptPositions(reads)
    return RequestCache(session, tree, reuse, ids)


def rows_found(cache: RequestCache) -> CacheRows:
    cache.load()
    session: Any = cache.session
    rows: CacheRows = session.rows
    return rows


def positions_of(rows: CacheRows) -> list[int]:
    return [int(each) for each in rows.layers[0][0, :, 0]]


def test_causal_rows_of_several_rounds_fill_a_block() -> None:
    rng, tree, params = np.random.default_rng(0), PrefixTree(1000), params_of(**SLIDING)
    ids = rng.integers(0, 99, 100)
    for _ in range(20):
        tree = PrefixTree(1000)
        first = cache_of(tree, prefix_reuse(40, params, 0), ids[:40])
        assert first.reused == 0
        place = 0
        for count in [40, *rng.integers(0, 9, 20).tolist()]:
            count = min(count, len(ids) - place)
            first.store_rows(place, ids[place : place + count])
            place += count
        first.end_sharing()
        assert tree.tokens == place // CAUSAL_BLOCK * CAUSAL_BLOCK
        again = cache_of(tree, prefix_reuse(100, params, 0), ids)
        assert again.reused == tree.tokens > 40
        assert positions_of(rows_found(again)) == list(range(again.reused))
        again.end_sharing()


def test_stored_blocks_are_read_once() -> None:
    tree, params, reads = PrefixTree(1000), params_of(**BLOCKS), list[int]()
    ids = np.arange(64)
    requests = [cache_of(tree, prefix_reuse(40, params, 0), ids[:40], reads) for _ in range(2)]
    for start, end in ((0, 40), (40, 48), (48, 64)):
        for each in requests:  # both computed the rows, since neither was stored when they were admitted
            each.store_rows(start, ids[start:end])
    assert reads == list(range(0, 64, 8))
    assert tree.tokens == 64
    third = cache_of(tree, prefix_reuse(50, params, 0), np.concatenate([ids[:47], [5, 5, 5]]))
    assert positions_of(rows_found(third)) == list(range(40))  # a block with another id is another block


def test_storing_ends_without_space_and_after_a_gap() -> None:
    params, ids = params_of(**BLOCKS), np.arange(64)
    for tree, starts, expected in ((PrefixTree(20), (0, 40, 48), 16), (PrefixTree(100), (0, 48, 56), 40)):
        reads: list[int] = []
        one = cache_of(tree, prefix_reuse(40, params, 0), ids[:40], reads)
        for start, end in zip(starts, (40, 48 if starts[1] == 40 else 56, 64), strict=True):
            one.store_rows(start, ids[start:end])
        assert (tree.tokens, reads) == (expected, list(range(0, expected, 8)))
        one.end_sharing()
        one.end_sharing()
    none = PrefixTree(0)
    cache_of(none, prefix_reuse(40, params, 0), ids[:40], reads := []).store_rows(0, ids)
    assert not reads  # rows that cannot be stored are not read


def test_only_the_whole_prompt_is_stored_if_it_is_one_block() -> None:
    tree, params, ids = PrefixTree(100), params_of(**PROMPT), np.arange(30)
    one = cache_of(tree, prefix_reuse(20, params, 0), ids[:20])
    one.store_rows(0, ids[:20])
    one.store_rows(20, ids[20:])
    assert tree.tokens == 20
    for prompt, found in ((20, 20), (19, 0), (21, 0)):
        assert cache_of(tree, prefix_reuse(prompt, params, 0), ids[:prompt]).reused == found
