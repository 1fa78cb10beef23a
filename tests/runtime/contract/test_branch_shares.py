import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.random_windows import random_batch

from lopa.runtime.contract import Statistics
from lopa.runtime.contract.branch_shares import part_of_batch, shares_of_branches, statistics_from_parts


@given(st.integers(1, 40), st.integers(1, 20))
def test_every_branch_has_one_device(branches: int, devices: int) -> None:
    shares = shares_of_branches(branches, devices)
    assert len(shares) == devices
    assert [branch for share in shares for branch in range(branches)[share]] == list(range(branches))
    sizes = [len(range(branches)[share]) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == max(sizes)


@pytest.mark.parametrize(("branches", "devices"), [(0, 2), (3, 0), (-1, 1)])
def test_nothing_to_deal(branches: int, devices: int) -> None:
    with pytest.raises(ValueError, match="expected at least one"):
        shares_of_branches(branches, devices)


@pytest.mark.parametrize("devices", [1, 2, 5])
@pytest.mark.parametrize("with_logits", [False, True])
def test_parts_are_put_together_in_order(devices: int, *, with_logits: bool) -> None:
    rng = np.random.default_rng(devices)
    batch = random_batch(rng, [4, 7], 5, 6, 3, starts=0)
    whole = _echo(batch.input_ids, batch.logits_index, with_logits=with_logits)
    parts = [part_of_batch(batch, share) for share in shares_of_branches(5, devices)]
    assert all(part.requests == (4, 7) for part in parts)
    assert all(len(part.window_mask.shape) == 4 and part.window_mask.shape[1] < 6 for part in parts)
    answers = [_echo(part.input_ids, part.logits_index, with_logits=with_logits) for part in parts]
    found = statistics_from_parts(answers)
    for name in ("topk_ids", "topk_logprobs", "entropy", "logits"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))


def _echo(ids: np.ndarray, index: np.ndarray, *, with_logits: bool) -> Statistics:
    """Statistics that are other for every window: what the wanted rows hold."""
    wanted = np.take_along_axis(ids, index, axis=2)
    repeated = np.repeat(wanted[..., None], 8, axis=-1)
    values = repeated.astype(np.float32)
    return Statistics(repeated, values, values[..., 0], values if with_logits else None)
