"""When committed rows are the same on every branch; held against rows that an engine computes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.random_windows import assert_close, block_causal_mask, full_mask, random_batch

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import WindowBatch
from lopa.runtime.session import open_session
from lopa.runtime.shared_rows import rows_are_shared


def branches_that_differ_behind(rng: np.random.Generator, start: int, *, full: bool) -> WindowBatch:
    """Two requests with three branches whose ids differ from row `start` on."""
    shape = (2, 3, 24)
    batch = random_batch(rng, [1, 2], 3, 24, 2, mask=full_mask(shape) if full else block_causal_mask(shape, 8))
    batch.input_ids[:, :, :start] = batch.input_ids[:, :1, :start]
    return batch


def test_block_causal_rows_before_the_difference_are_shared(tiny_bundle: Path) -> None:
    batch = branches_that_differ_behind(np.random.default_rng(0), 16, full=False)
    assert [rows_are_shared(batch, 1, count) for count in (8, 16, 24)] == [True, True, False]
    session = open_session(Bundle.open(tiny_bundle), "cpu", threads=1)
    session.forward(batch)
    rows = [session.read_rows(2, branch, 16).layers for branch in range(3)]
    session.close()
    for others in rows[1:]:
        for found, expected in zip(others, rows[0], strict=True):
            assert_close(found, expected)


def test_full_windows_share_nothing(tiny_bundle: Path) -> None:
    batch = branches_that_differ_behind(np.random.default_rng(1), 16, full=True)
    assert not rows_are_shared(batch, 0, 16)
    session = open_session(Bundle.open(tiny_bundle), "cpu", threads=1)
    session.forward(batch)
    first, second = (session.read_rows(1, branch, 16).layers[-1] for branch in (0, 1))
    session.close()
    assert np.abs(first - second).max() > 0.01


@pytest.mark.parametrize("what", ["input_ids", "position_ids", "window_mask"])
def test_every_difference_between_branches_counts(what: str) -> None:
    batch = branches_that_differ_behind(np.random.default_rng(2), 16, full=False)
    changed = getattr(batch, what).copy()
    changed[1, 2, 13] = ~changed[1, 2, 13] if what == "window_mask" else changed[1, 2, 13] + 1
    if what == "window_mask":
        changed[1, 2, 13, 16:] = False
    other = replace(batch, **{what: changed})
    assert rows_are_shared(other, 0, 16)
    assert not rows_are_shared(other, 1, 16)
    assert rows_are_shared(other, 1, 8)


def test_rows_that_see_behind_are_not_shared_even_where_all_is_the_same() -> None:
    """What lies behind may differ: here one row alone sees it, on every branch."""
    batch = branches_that_differ_behind(np.random.default_rng(3), 16, full=False)
    batch.window_mask[:, :, 11, 20] = True
    assert not rows_are_shared(batch, 0, 16)
    assert rows_are_shared(batch, 0, 8)
