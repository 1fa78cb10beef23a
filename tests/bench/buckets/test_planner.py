"""The planner compared with an exhaustive search, its bounds, and its padding on the recorded traces."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.recorded import TRACES, recording_of_file

from lopa.bench.buckets.bucket_costs import BucketCosts, bucket_costs, bytes_of_bucket
from lopa.bench.buckets.bucket_plan import expected_effect
from lopa.bench.buckets.forward_recording import forwards_of_recording
from lopa.bench.buckets.planner import BucketChoice, choose_shape_buckets, limits_from_params
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import (
    BucketPlanCosts,
    BucketTable,
    ShapeBucket,
    are_valid_shape_buckets,
    bucket_from_sizes,
)
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig, resolve

LIMITS = Sizes(2, 4, 128, 192, 97)


def costs_of(knee: int) -> BucketCosts:
    """Return costs that grow with the rows above `knee`, and with the prefix."""
    about = BucketPlanCosts(kind="modelled", device="test", machine="test", measured=None)
    return BucketCosts(about, lambda sequences, window, prefix: max(sequences * window, knee) * (1 + prefix / 512))


def rows_of(sizes: Sizes) -> int:
    """Return the number of rows, which the tests use in place of bytes."""
    return sizes.requests * sizes.branches * sizes.window


def plan(
    forwards: Counter[Sizes], limits: Sizes, costs: BucketCosts, max: int, max_bytes: int | None = None
) -> BucketChoice:
    return choose_shape_buckets(forwards, limits, costs, max=max, max_bytes=max_bytes, bytes_of=rows_of, seconds=60)


def seconds_at_run_time(buckets: list[ShapeBucket], forwards: Counter[Sizes]) -> float:
    table = BucketTable(buckets)
    return sum(count * table.bucket_for(sizes).seconds_for(sizes) for sizes, count in forwards.items())


@st.composite
def some_forwards(draw: st.DrawFn) -> Counter[Sizes]:
    forwards: Counter[Sizes] = Counter()
    for _ in range(draw(st.integers(1, 6))):
        window = draw(st.sampled_from([1, 16, 40, 64, 100]))
        sizes = Sizes(
            draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3, 4])), window, draw(st.sampled_from([64, 192])),
            draw(st.integers(1, min(window, 97))),
        )  # fmt: skip
        forwards[sizes] += draw(st.integers(1, 50))
    return forwards


@settings(max_examples=30, deadline=None)
@given(some_forwards(), st.integers(1, 3), st.sampled_from([1, 200]), st.sampled_from([None, 300]))
def test_no_choice_of_buckets_is_better_at_run_time(
    forwards: Counter[Sizes], max: int, knee: int, max_bytes: int | None
) -> None:
    costs = costs_of(knee)
    found = plan(forwards, LIMITS, costs, max, max_bytes)
    assert are_valid_shape_buckets(found.buckets)
    assert len(found.buckets) <= max
    assert 0.5 < found.least_share <= 1
    axes = (
        sorted({1, LIMITS.requests} | {sizes.requests for sizes in forwards}),
        sorted({1, LIMITS.branches} | {sizes.branches for sizes in forwards}),
        sorted({LIMITS.window} | {-(-sizes.window // 16) * 16 for sizes in forwards}),
        sorted({LIMITS.prefix} | {sizes.prefix for sizes in forwards}),
    )
    every = [
        ShapeBucket(
            requests=r, branches=b, window=w, prefix=p, wanted=min(w, 97), seconds=costs.seconds_of(r * b, w, p)
        )
        for r, b, w, p in itertools.product(*axes)
    ]
    fitting = [bucket for bucket in every if max_bytes is None or rows_of(bucket) <= max_bytes]
    longest = [bucket for bucket in fitting if (bucket.window, bucket.prefix) == (LIMITS.window, LIMITS.prefix)]
    whole = [bucket for bucket in longest if (bucket.requests, bucket.branches) == (LIMITS.requests, LIMITS.branches)]
    rng = np.random.default_rng(0)
    others = [list(each) for each in itertools.combinations(fitting, max - 1)]
    tried = [others[i] for i in rng.permutation(len(others))[:400]]
    best = min(seconds_at_run_time([bucket, *rest], forwards) for bucket in whole or longest for rest in tried)
    assert seconds_at_run_time(list(found.buckets), forwards) <= best * (1 + 1e-9)


def test_a_memory_limit_reduces_branches_of_the_largest_bucket_first() -> None:
    forwards = Counter({Sizes(1, 4, 60, 64, 33): 1000, Sizes(1, 4, 128, 192, 33): 5})
    found = plan(forwards, LIMITS, costs_of(1), 2, max_bytes=256)
    assert max(rows_of(bucket) for bucket in found.buckets) <= 256
    split = BucketTable(found.buckets).bucket_for(Sizes(1, 4, 128, 192, 33))
    assert split.forwards(Sizes(1, 4, 128, 192, 33)) > 1
    with pytest.raises(BadInputError, match=r"at least 0\.000001 GiB: one branch of one request over a window of 128"):
        plan(forwards, LIMITS, costs_of(1), 2, max_bytes=127)


def test_too_many_sizes_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    forwards = Counter({Sizes(1, b, w, p, 1): b + w for b in (1, 2, 4) for w in range(1, 129) for p in (64, 192)})
    best = plan(forwards, LIMITS, costs_of(1), 4)
    assert best.every_size
    monkeypatch.setattr("lopa.bench.buckets.planner.MAX_CELLS", 1000)
    found = plan(forwards, LIMITS, costs_of(1), 4)
    assert not found.every_size
    assert are_valid_shape_buckets(found.buckets)
    lower = seconds_at_run_time(list(best.buckets), forwards)
    assert lower < seconds_at_run_time(list(found.buckets), forwards) < 1.2 * lower


def test_limits_follow_from_the_options() -> None:
    plans = [
        resolve(GenerationConfig(branches=5, block_size=32, max_new_tokens=100)),
        resolve(GenerationConfig(strategy="d2f", block_size=16, max_new_tokens=40)),
    ]
    forwards = Counter({Sizes(3, 2, 50, 64, 20): 1})
    assert limits_from_params(plans, forwards, 30) == Sizes(3, 5, 112, 192, 101)
    assert limits_from_params(plans, forwards, 300) == Sizes(3, 5, 336, 448, 101)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*lopa*.gz")), ids=lambda path: path.name.split(".")[0])
def test_recorded_traces_with_eight_buckets(path: Path, tiny_bundle: Path) -> None:
    """Padding costs at most 10 % in time. The cost model of one CPU thread is the hardest, since every row costs."""
    bundle = Bundle.open(tiny_bundle)
    recording = recording_of_file(path)
    forwards = forwards_of_recording(recording, 1)
    limits = limits_from_params(recording.params, forwards, recording.longest_prompt)
    for device, aim in (("cpu", 1.14 if "x_long" in path.name else 1.10), ("cuda:0", 1.05)):
        costs = bucket_costs(bundle, device, None)
        found = choose_shape_buckets(
            forwards, limits, costs, max=8, max_bytes=None, seconds=60,
            bytes_of=lambda sizes: bytes_of_bucket(bundle.manifest, sizes),
        )  # fmt: skip
        expected = expected_effect(found, forwards, costs)
        assert 0.97 < found.least_share <= 1
        assert expected.seconds <= aim * expected.no_padding_seconds
        one = BucketChoice((bucket_from_sizes(limits, costs.seconds(limits)),), least_share=1.0, every_size=True)
        largest = expected_effect(one, forwards, costs)
        assert expected.seconds < largest.seconds
        assert expected.padding < largest.padding
