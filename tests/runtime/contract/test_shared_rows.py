"""Detection of rows that are equal on every branch, compared with what an engine computes."""

from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.random_windows import block_causal_mask, full_mask, random_batch

from lopa.runtime.contract import WindowBatch
from lopa.runtime.contract.batch_parts import rows_are_shared
from lopa.runtime.contract.packed_batch import PackedBatch, packed_batch


def batch_with_equal_starts(seed: int, equal: int, *, branches: int = 3) -> WindowBatch:
    """Return windows of 12 rows in blocks of 4, where the second request's branches share their first `equal`
    tokens.
    """
    rng = np.random.default_rng(seed)
    shape = (2, branches, 12)
    batch = random_batch(rng, [5, 9], branches, 12, 2, mask=block_causal_mask(shape, 4))
    batch.input_ids[1, :, :equal] = batch.input_ids[1, :1, :equal]
    return batch


@pytest.mark.parametrize(("equal", "count", "shared"), [(8, 4, True), (8, 8, True), (12, 12, True), (7, 8, False)])
def test_equal_tokens_before_a_block_boundary_are_shared(equal: int, count: int, *, shared: bool) -> None:
    batch = batch_with_equal_starts(1, equal)
    assert rows_are_shared(packed_batch(batch), 1, count) is shared
    assert not rows_are_shared(packed_batch(batch), 0, count), "the other request's tokens differ"


def test_rows_that_attend_to_later_rows_are_not_shared() -> None:
    batch = batch_with_equal_starts(3, 8)
    assert not rows_are_shared(packed_batch(replace(batch, window_mask=full_mask((2, 3, 12)))), 1, 8)
    assert not rows_are_shared(packed_batch(batch), 1, 6), "within a block every row attends to the whole block"
    batch.window_mask[1, 2, 5, 11] = True
    assert rows_are_shared(packed_batch(batch), 1, 4)
    assert not rows_are_shared(packed_batch(batch), 1, 8)


def test_different_positions_or_masks_are_not_shared() -> None:
    batch = batch_with_equal_starts(4, 8)
    batch.position_ids[1, 1, 3] += 1
    assert not rows_are_shared(packed_batch(batch), 1, 4)
    batch = batch_with_equal_starts(4, 8)
    batch.window_mask[1, 1, 6, 2] = False
    assert rows_are_shared(packed_batch(batch), 1, 4)
    assert not rows_are_shared(packed_batch(batch), 1, 8)


@pytest.mark.parametrize(("lengths", "shared"), [([4, 2, 1], False), ([4, 6, 5], True), ([4, 6, 3], False)])
def test_windows_of_other_lengths_may_share_rows(lengths: list[int], *, shared: bool) -> None:
    numbers = np.concatenate([np.arange(length) for length in lengths])
    batch = PackedBatch(
        requests=(1,),
        temperature=np.ones(1, np.float32),
        slots=np.zeros(3, np.int64),
        lengths=np.array(lengths),
        input_ids=numbers + 5,
        position_ids=numbers,
        mask=np.concatenate([np.tri(length, dtype=np.bool_).ravel() for length in lengths]),
        sampled_rows=np.zeros(1, np.int64),
    )
    assert rows_are_shared(batch, 0, 4) is shared
