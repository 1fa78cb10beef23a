"""A forward cut into micro-batches and put together again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.random_windows import random_batch

from lopa.runtime.contract import Statistics
from lopa.runtime.parallel.micro_batches import micro_batches, piece_of_batch, statistics_from_pieces


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 8))
def test_every_window_is_in_one_piece(requests: int, branches: int, wanted: int) -> None:
    pieces = micro_batches(requests, branches, wanted)
    windows = np.arange(requests * branches).reshape(requests, branches)
    assert [n for piece in pieces for n in windows[piece.requests, piece.branches].ravel()] == list(windows.ravel())
    sizes = [windows[piece.requests, piece.branches].size for piece in pieces]
    assert 0 not in sizes
    assert min(wanted, requests * branches) <= len(pieces) < 2 * wanted
    if requests == 1 or requests >= wanted:
        assert len(pieces) == min(wanted, requests * branches)


def test_whole_requests_before_branches() -> None:
    cut = [(piece.requests.stop - piece.requests.start, piece.branches.stop) for piece in micro_batches(5, 3, 2)]
    assert cut == [(3, 3), (2, 3)]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_answers_go_where_their_windows_were(requests: int, branches: int, wanted: int, logits: bool) -> None:
    rng = np.random.default_rng(requests * branches)
    batch = random_batch(rng, range(10, 10 + requests), branches, 4, 3)

    def answer(ids: np.ndarray, temperature: np.ndarray) -> Statistics:
        rows = ids[:, :, :3]
        scaled = (rows / temperature[:, None, None]).astype(np.float32)
        return Statistics(rows[..., None], scaled[..., None], scaled + 1, scaled[..., None] * 2 if logits else None)

    pieces = micro_batches(requests, branches, wanted)
    cut = [piece_of_batch(batch, piece) for piece in pieces]
    whole = answer(batch.input_ids, batch.temperature)
    found = statistics_from_pieces(pieces, [answer(each.input_ids, each.temperature) for each in cut])
    for name in ("topk_ids", "topk_logprobs", "entropy", *(["logits"] if logits else [])):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    assert (found.logits is None) == (not logits)
    for piece, each in zip(pieces, cut, strict=True):
        assert each.requests == batch.requests[piece.requests]
        for name in ("position_ids", "window_mask", "logits_index"):
            expected = getattr(batch, name)[piece.requests, piece.branches]
            np.testing.assert_array_equal(getattr(each, name), expected)
