"""The lists of the attention's work cover every pair of a row and a key once, whatever runs beside a request."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from lopa.runtime.contract.packed_batch import CanvasRows, PackedBatch
from lopa.runtime.cuda_kernels.attention_tasks import PAIRS, AttentionHeads, AttentionWork, attention_work
from lopa.runtime.errors import BadInputError

HEADS = [AttentionHeads(28, 4, 128), AttentionHeads(6, 2, 32), AttentionHeads(32, 32, 64), AttentionHeads(64, 1, 256)]
Windows = Sequence[Sequence[int]]
"""Lengths of each request's windows."""


def batch_of(windows: Windows) -> PackedBatch:
    lengths = np.concatenate(windows).astype(np.int64)
    rows = np.zeros(lengths.sum(), np.int64)
    return PackedBatch(
        requests=tuple(range(len(windows))),
        temperature=np.ones(len(windows), np.float32),
        slots=np.arange(len(windows)).repeat([*map(len, windows)]),
        lengths=lengths,
        input_ids=rows,
        position_ids=rows,
        mask=np.random.default_rng(0).random(lengths @ lengths) < 0.5,
        sampled_rows=rows[:1],
    )


def work_of(windows: Windows, prefixes: Sequence[int], heads: AttentionHeads, padding: int = 0) -> "Lists":
    """Return the lists of a forward in which every chunk has its own offset, and each request a chunk too many."""
    batch = batch_of(windows)
    chunks = [[-(7**request) * (n + 1) for n in range(-(-p // 64) + 1)] for request, p in enumerate(prefixes)]
    work = attention_work(batch, len(batch.input_ids) + padding, prefixes, chunks, heads)
    return Lists(work, batch, [offset for own in chunks for offset in own])


@dataclass
class Lists:
    """The lists of a forward, read by their description."""

    work: AttentionWork
    batch: PackedBatch
    given_chunks: list[int]

    def __post_init__(self) -> None:
        words = self.work.words
        counts, places = words[:2].tolist(), [*words[2:7].tolist(), len(words)]
        assert places == sorted(places)
        assert places[3] % 2 == 0
        self.tasks = words[places[1] :][: 8 * counts[0]].reshape(-1, 8)
        self.merges = words[places[2] :][: 4 * counts[1]].reshape(-1, 4)
        self.rows = words[places[0] : places[1]][: 4 * int(abs(self.tasks[:, :2]).sum(1).max())].reshape(-1, 4)
        assert words[places[3] : places[4]].view(np.int64).tolist() == self.given_chunks
        assert (words[places[4] :].view(np.bool_)[: self.batch.mask.size] == self.batch.mask).all()
        assert len(words) - places[4] >= 2, "kernels read one chunk more than there are"


@pytest.mark.parametrize("heads", HEADS)
def test_every_row_meets_its_prefix_and_its_window_once(heads: AttentionHeads) -> None:
    rng = np.random.default_rng(heads.heads)
    for _ in range(20):
        windows = [rng.integers(1, 41, rng.integers(1, 5)).tolist() for _ in range(rng.integers(1, 4))]
        prefixes = [int(rng.choice([0, 1, 63, 64, int(rng.integers(0, 2000))])) for _ in windows]
        padding = int(rng.integers(0, 100))
        lists = work_of(windows, prefixes, heads, padding)
        _check(lists, windows, prefixes, heads, padding)


def _check(lists: Lists, windows: Windows, prefixes: Sequence[int], heads: AttentionHeads, padding: int) -> None:
    real = len(lists.batch.input_ids)
    total = real + padding
    first_chunks = np.cumsum([0, *(-(-prefix // 64) + 1 for prefix in prefixes)])
    past, own = np.zeros((total, max(prefixes) + 1), int), np.zeros((total, total), int)
    request_of_row = np.append(np.arange(len(windows)).repeat([*map(sum, windows)]), np.full(padding, -1))
    parts: dict[int, list[int]] = {}
    for first, given, begin, end, own_begin, own_end, chunk, place in lists.tasks.tolist():
        rows = slice(first, first + abs(given))
        (request,) = set(request_of_row[rows])
        assert abs(given) * heads.heads // heads.kv_heads <= PAIRS
        assert begin % 64 == 0
        assert begin == end or chunk == first_chunks[request]
        past[rows, begin:end] += 1
        own[rows, own_begin:own_end] += 1
        if given < 0:
            parts.setdefault(first, []).append(place)
    merged = {first: list(range(place, place + count)) for first, _, place, count in lists.merges.tolist()}
    assert merged == parts
    places = [place for each in parts.values() for place in each]
    assert sorted(places) == list(range(len(places)))
    assert lists.work.scratch == len(places) * heads.kv_heads * PAIRS * (heads.size + 2)
    line = start = 0
    for request, length in ((request, length) for request, lengths in enumerate(windows) for length in lengths):
        for row in range(start, start + length):
            assert lists.rows[row].tolist() == [start, length, line, 0]
            assert own[row, start : start + length].tolist() == [1] * length
            assert past[row].tolist() == [int(column < prefixes[request]) for column in range(len(past[row]))]
            line += length
        start += length
    assert own.max() == 1
    assert not past[real:].any()
    assert not own[real:].any()
    assert sum(abs(lists.tasks[lists.tasks[:, 0] >= real, 1])) == padding
    assert not lists.rows[real:, 1].any()


def test_layers_with_a_sliding_window_have_lists_of_their_own() -> None:
    """The mask of these has what a row sees of its window. Rows say which cached row they see first."""
    rng, prefixes, plain = np.random.default_rng(3), [70, 200], batch_of([[5], [9, 9]])
    positions = np.concatenate([70 + np.arange(5), *[200 + np.arange(9)] * 2])
    starts = positions - rng.integers(0, 40, 23)
    canvas = CanvasRows(np.ones(23, np.bool_), starts, np.full(23, -1), np.ones(1, np.float32))
    batch = replace(plain, position_ids=positions, canvas=canvas)
    chunks = [[1, 2], [3, 4, 5, 6]]
    work = attention_work(batch, 32, prefixes, chunks, *HEADS[:2])
    words, place = work.words, int(work.words[7])
    assert place % 2 == 0
    near, line = [], 0
    for start, length in ((0, 5), (5, 9), (14, 9)):
        for row in range(start, start + length):
            own = positions[start : start + length] >= starts[row]
            near += (plain.mask[line : line + length] & own).tolist()
            line += length
    for part, mask, heads in ((words[:place], plain.mask, HEADS[0]), (words[place:], np.array(near), HEADS[1])):
        lists = Lists(AttentionWork(part, work.scratch), replace(plain, mask=mask), [1, 2, 3, 4, 5, 6])
        alone = work_of([[5], [9, 9]], prefixes, heads, 9)
        assert lists.tasks[:, :6].tolist() == alone.tasks[:, :6].tolist()
        assert lists.rows[:23, 3].tolist() == starts.tolist()
        assert work.scratch >= alone.work.scratch
    assert sum(near) < plain.mask.sum()


def test_a_request_is_split_in_the_same_way_beside_others() -> None:
    heads, windows = HEADS[0], [32, 20, 7]
    alone = work_of([windows], [700], heads).tasks
    beside = work_of([[9], windows, [50]], [2000, 700, 0], heads, 30).tasks
    moved = beside[beside[:, 6] == 33] - [9, 0, 0, 0, 0, 0, 33, 0]
    assert moved[:, :4].tolist() == alone[:, :4].tolist()
    assert len(set(moved[:, 7] - alone[:, 7])) == 1
    inside = alone[:, 5] > 0
    assert (moved[inside, 4:6] - 9).tolist() == alone[inside, 4:6].tolist()


def test_masks_beyond_the_offsets_of_kernels_are_refused() -> None:
    batch = SimpleNamespace(mask=SimpleNamespace(size=2**31))
    with pytest.raises(BadInputError, match="window masks of 2147483648 entries"):
        attention_work(batch, 0, [], [], HEADS[0])  # type: ignore[arg-type]


def test_prefixes_without_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"received \[1\] chunks, expected enough for the rows \[65\]"):
        attention_work(batch_of([[3]]), 3, [65], [[0]], HEADS[0])


def test_a_mask_of_one_byte_takes_two_words() -> None:
    assert len(work_of([[1]], [64], HEADS[0]).work.words) % 2 == 0


def test_small_forwards_have_more_programs() -> None:
    """16 programs of 132 multiprocessors are busy without parts (docs/measurements/gpu.md)."""
    lists = work_of([[32]], [512], HEADS[0])
    assert len(lists.tasks) * HEADS[0].kv_heads == 64
    for branches, prefix, merges in ((4, 512, 0), (8, 512, 0), (4, 2048, 29)):
        large = work_of([[64] * branches], [prefix], HEADS[0])
        assert len(large.merges) == merges, "parts write sums that cost more than they save"
