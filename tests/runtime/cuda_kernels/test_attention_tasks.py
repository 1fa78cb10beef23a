"""The lists of the attention's work cover every pair of a row and a key once, whatever runs beside a request."""

import numpy as np
import pytest

from lopa.runtime.contract import tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.cuda_kernels.attention_tasks import PAIRS, AttentionHeads, AttentionWork, attention_work
from lopa.runtime.errors import BadInputError

HEADS = [AttentionHeads(28, 4, 128), AttentionHeads(6, 2, 32), AttentionHeads(32, 32, 64), AttentionHeads(64, 1, 256)]


def _counts(work: AttentionWork, sizes: Sizes, heads: AttentionHeads) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each row meets each column of its prefix, [rows, P], and each packed row, [rows, rows]."""
    past, own = np.zeros((sizes.rows, sizes.prefix), int), np.zeros((sizes.rows, sizes.rows), int)
    parts: dict[int, list[int]] = {}
    for number, (first, given, begin, end, own_begin, own_end, chunk, mask) in enumerate(work.tasks.tolist()):
        if given == 0:
            continue
        rows = slice(first, first + abs(given))
        assert abs(given) * heads.heads // heads.kv_heads <= PAIRS
        assert work.chunks[chunk] == chunk * heads.kv_heads * sizes.prefix * heads.size
        assert mask == chunk * sizes.prefix
        assert chunk == first // (sizes.branches * sizes.window) == (rows.stop - 1) // (sizes.branches * sizes.window)
        past[rows, begin:end] += 1
        own[rows, own_begin:own_end] += 1
        if given < 0:
            parts.setdefault(first, []).append(number)
    merged = {first: list(range(task, task + count)) for first, _, task, count in work.merges.tolist() if count}
    assert merged == parts
    return past, own


@pytest.mark.parametrize("heads", HEADS)
def test_every_row_meets_its_prefix_and_its_window_once(heads: AttentionHeads) -> None:
    rng = np.random.default_rng(heads.heads)
    for _ in range(20):
        requests, branches, window, prefix = (int(rng.integers(1, most)) for most in (4, 5, 40, 30))
        sizes = Sizes(requests, branches, window, 64 * prefix, wanted=1)
        lengths = [int(rng.integers(0, sizes.prefix + 1)) for _ in range(requests)]
        work = attention_work(lengths, sizes, heads)
        past, own = _counts(work, sizes, heads)
        for row, (first, length, offset) in enumerate(work.rows.tolist()):
            request = row // (branches * window)
            cached = tiles(lengths[request]) if lengths[request] else 0
            assert past[row].tolist() == [1] * cached + [0] * (sizes.prefix - cached)
            assert (first, length, offset) == (row // window * window, window, row * window)
            assert own[row, first : first + length].tolist() == [1] * window
            assert own[row].max() == 1


def test_a_request_is_split_in_the_same_way_beside_others() -> None:
    heads, window = HEADS[0], 32
    alone = attention_work([700], Sizes(1, 1, window, 704, wanted=1), heads).tasks
    beside = attention_work([2000, 700, 0], Sizes(3, 1, window, 2048, wanted=1), heads).tasks
    moved = beside[beside[:, 6] == 1] - [window, 0, 0, 0, window, window, 1, 2048]
    assert moved.tolist() == alone[alone[:, 1] != 0].tolist()


def test_masks_beyond_the_offsets_of_kernels_are_refused() -> None:
    with pytest.raises(BadInputError, match="window mask of 2 x 1 x 32768 x 32768"):
        attention_work([0, 0], Sizes(2, 1, 2**15, 64, wanted=1), HEADS[0])


def test_small_forwards_have_more_programs() -> None:
    """16 programs of 132 multiprocessors are busy without parts (docs/measurements/gpu.md)."""
    work = attention_work([512], Sizes(1, 1, 32, 512, wanted=1), HEADS[0])
    assert len(work.tasks) * HEADS[0].kv_heads == 64
    for branches, prefix, merges in ((4, 512, 0), (8, 512, 0), (4, 2048, 29)):
        large = attention_work([prefix], Sizes(1, branches, 64, prefix, wanted=1), HEADS[0])
        assert len(large.merges) == merges, "parts write sums that cost more than they save"
