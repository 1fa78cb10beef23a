"""Every forward has exactly one profile, and is padded to a shape that the profile takes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.tensorrt.buckets import BUCKETS, WANTED, bucket

from lopa.runtime.accelerator.padding import parts_of_forward
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.profiles import (
    ProfileTable,
    prefill_range,
    profiles_of_buckets,
)

PREFILL = prefill_range(BUCKETS)
TABLE = ProfileTable(BUCKETS, PREFILL)


@st.composite
def bucket_plans(draw: st.DrawFn) -> list[ShapeBucket]:
    """Draw a valid plan whose last shape bucket holds every window and prefix."""
    buckets = draw(
        st.lists(
            st.builds(
                lambda r, b, w, p: (r, b, w, p * TILE),
                st.integers(1, 3),
                st.integers(1, 5),
                st.integers(1, 400),
                st.integers(1, 12),
            ),
            min_size=1,
            max_size=6,
            unique=True,
        )
    )
    largest = (*buckets[-1][:2], max(each[2] for each in buckets), max(each[3] for each in buckets))
    return [bucket(*sizes, seconds=float(np.prod(sizes))) for sizes in dict.fromkeys([*buckets, largest])]


@st.composite
def forwards(draw: st.DrawFn, buckets: list[ShapeBucket]) -> Sizes:
    """Draw a forward within the limits of `buckets`, possibly with more requests and branches than a bucket has."""
    window = draw(st.integers(1, max(each.window for each in buckets)))
    return Sizes(
        requests=draw(st.integers(1, 8)),
        branches=draw(st.one_of(st.just(1), st.integers(1, 10))),
        window=window,
        prefix=TILE * draw(st.integers(1, max(each.prefix for each in buckets) // TILE)),
        wanted=draw(st.integers(1, min(window, WANTED))),
    )


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_forward_has_exactly_one_profile(data: st.DataObject) -> None:
    buckets = data.draw(bucket_plans())
    sizes = data.draw(forwards(buckets))
    prefill = prefill_range(buckets)
    number, shape = ProfileTable(buckets, prefill).profile_for(sizes)
    profiles = profiles_of_buckets(buckets, prefill)
    assert profiles[number].holds(shape)
    assert shape.fits_rows(sizes)
    if number < len(buckets):
        assert shape == buckets[number]
        assert [index for index, each in enumerate(profiles[:-1]) if each.holds(shape)] == [
            number
        ]  # no other bucket has this shape
        in_range = sizes.requests <= prefill.max.requests and sizes.branches == 1
        assert not in_range or sizes.window < prefill.min.window
    else:
        assert not any(each.window == shape.window for each in buckets if each.window < prefill.min.window)
        assert sizes.branches == 1
        assert shape.window - sizes.window < 64
    covered = np.zeros((sizes.requests, sizes.branches), int)
    for requests, branches in parts_of_forward(sizes, shape):
        covered[requests, branches] += 1
        assert requests.stop - requests.start <= shape.requests
        assert branches.stop - branches.start <= shape.branches
    assert (covered == 1).all()


@pytest.mark.parametrize(
    ("sizes", "profile", "window"),
    [
        (Sizes(1, 1, 20, 64, 20), 0, 32),
        (Sizes(1, 4, 96, 384, 96), 1, 96),
        (Sizes(1, 1, 288, 64, 257), 2, 288),  # as long as the second longest bucket
        (Sizes(1, 1, 289, 64, 257), 4, 320),
        (Sizes(2, 1, 560, 64, 32), 4, 576),
        (Sizes(3, 1, 560, 64, 32), 3, 640),  # more requests than the range allows
        (Sizes(1, 1, 640, 896, 257), 4, 640),
        (Sizes(1, 4, 289, 896, 257), 3, 640),  # several branches: not a prompt's first window
    ],
)
def test_long_one_branch_windows_run_in_the_range(sizes: Sizes, profile: int, window: int) -> None:
    number, shape = TABLE.profile_for(sizes)
    assert (number, shape.window) == (profile, window)


def test_forward_beyond_all_profiles_raises() -> None:
    for sizes in (Sizes(1, 1, 641, 64, 1), Sizes(1, 1, 1, 960, 1), Sizes(1, 1, 300, 64, 258)):
        with pytest.raises(BadInputError, match="the largest shape bucket"):
            TABLE.profile_for(sizes)


def test_padding_stays_within_the_range() -> None:
    buckets = [bucket(1, 1, 10, 128, 1.0), bucket(1, 1, 100, 128, 2.0)]
    number, shape = ProfileTable(buckets, prefill_range(buckets)).profile_for(Sizes(1, 1, 80, 64, 80))
    assert (number, shape.window, shape.wanted) == (2, 100, 100)


def test_range_with_one_window_length() -> None:
    single = [bucket(1, 4, 96, 128, 1.0)]
    table = ProfileTable(single, prefill_range(single))
    assert table.profile_for(Sizes(1, 1, 95, 64, 1))[0] == 0
    assert table.profile_for(Sizes(1, 1, 96, 64, 1))[0] == 1


def test_range_is_ordered() -> None:
    for buckets in (BUCKETS, BUCKETS[:1], [bucket(1, 1, 10, 64, 1.0), bucket(1, 2, 11, 128, 2.0)]):
        found = prefill_range(buckets)
        for name in ("requests", "branches", "window", "prefix", "wanted"):
            low, best, high = (getattr(axes, name) for axes in (found.min, found.best, found.max))
            assert 1 <= low <= best <= high, name
        assert found.best.wanted <= found.best.window
