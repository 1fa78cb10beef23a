"""Plan files and the choice of a shape bucket."""

import json
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.buckets import bucket as any_bucket
from tests.buckets import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketTable, bucket_plan_from_file
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError

bucket = partial(any_bucket, wanted=64)
BUCKETS = [bucket(1, 4, 64, 64, 1.0), bucket(1, 1, 96, 128, 1.5), bucket(2, 4, 96, 128, 9.0)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (Sizes(1, 1, 1, 64, 1), 0),
        (Sizes(1, 4, 64, 64, 64), 0),
        (Sizes(1, 1, 64, 65, 1), 1),
        (Sizes(1, 3, 64, 128, 1), 1),  # three forwards of 1.5 plus the split cost are cheaper than 9
        (Sizes(2, 4, 64, 64, 1), 0),  # two forwards of 1 are cheaper too
        (Sizes(1, 9, 64, 64, 1), 0),  # more branches than any shape bucket
        (Sizes(5, 12, 96, 128, 64), 2),
        (Sizes(1, 1, 1, 64, 2), 0),  # the same row may be sampled twice
    ],
)
def test_cheapest_bucket_is_chosen(sizes: Sizes, expected: int) -> None:
    assert BucketTable(BUCKETS).bucket_for(sizes) == BUCKETS[expected]


def test_table_matches_exhaustive_search() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        buckets = [
            bucket(
                *(int(rng.integers(1, limit)) for limit in (3, 6, 80)),
                64 * int(rng.integers(1, 5)),
                float(rng.random()),
            )
            for _ in range(4)
        ]
        buckets.append(bucket(3, 6, 80, 320, float(rng.random())))
        table = BucketTable(buckets)
        for _ in range(100):
            sizes = Sizes(*(int(rng.integers(1, limit)) for limit in (5, 9, 81, 321, 65)))
            fitting = [each for each in buckets if each.fits_rows(sizes)]
            least = min(each.seconds_for(sizes) for each in fitting)
            found = table.bucket_for(sizes)
            assert found.seconds_for(sizes) <= least * (1 + 1e-12) or sizes.wanted > sizes.window
            assert found in fitting


def test_split_branches_fit_the_sampled_positions() -> None:
    buckets = [bucket(1, 1, 16, 64, 0.1), bucket(1, 1, 64, 64, 1.0)]
    assert BucketTable(buckets).bucket_for(Sizes(1, 2, 10, 64, 40)) == buckets[1]


def test_single_forward_wins_over_a_small_gain() -> None:
    buckets = [bucket(1, 1, 96, 128, 1.0), bucket(1, 2, 96, 128, 2.1)]
    assert BucketTable(buckets).bucket_for(Sizes(1, 2, 96, 128, 1)) == buckets[1]
    buckets[1] = bucket(1, 2, 96, 128, 2.3)
    assert BucketTable(buckets).bucket_for(Sizes(1, 2, 96, 128, 1)) == buckets[0]


@pytest.mark.parametrize("sizes", [Sizes(1, 1, 97, 64, 1), Sizes(1, 1, 1, 129, 1), Sizes(1, 1, 96, 64, 65)])
def test_rows_beyond_every_bucket_raise(sizes: Sizes) -> None:
    with pytest.raises(BadInputError, match="cannot be run in parts") as caught:
        BucketTable(BUCKETS).bucket_for(sizes)
    assert "--max-prompt" in caught.value.remedy


def test_plan_round_trips(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle, path = Bundle.open(tiny_bundle), tmp_path / "shape_buckets.json"
    path.write_bytes(json_from_record(params_of(bundle)))
    assert bucket_plan_from_file(path, bundle) == params_of(bundle)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema version 2"),
        ({"weights_sha256": "beef"}, "weights beef"),
        ({"buckets": []}, r"length >= 1 - at `\$.buckets`"),
        ({"buckets": [bucket(1, 0, 64, 64)]}, r"buckets\[0\].branches`, where it has 0"),
        ({"buckets": [bucket(1, 65, 64, 64)]}, r"buckets\[0\].branches`, where it has 65"),
        ({"buckets": [bucket(1, 1, 2**16 + 1, 64)]}, r"buckets\[0\].window`, where it has 65537"),
        ({"buckets": [bucket(1, 1, 64, 96)]}, r"multiple of 64 - at `\$.buckets\[0\].prefix`, where it has 96"),
        ({"buckets": [bucket(1, 1, 64, 128), bucket(1, 1, 96, 64)]}, "with the longest window"),
        ({"buckets": [*BUCKETS, msgspec.structs.replace(BUCKETS[2], wanted=3)]}, "wanted 3"),
    ],
)
def test_invalid_plan_or_plan_of_another_bundle_raises(
    tiny_bundle: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    bundle, path = Bundle.open(tiny_bundle), tmp_path / "shape_buckets.json"
    path.write_bytes(json_from_record(params_of(bundle, **changes)))
    with pytest.raises(BadInputError, match=message):
        bucket_plan_from_file(path, bundle)


@pytest.mark.parametrize("value", [2**20, 2**63, -1, 0, 1.5])
@pytest.mark.parametrize("name", ["requests", "branches", "window", "prefix", "wanted"])
def test_sizes_out_of_range_raise(tiny_bundle: Path, tmp_path: Path, name: str, value: object) -> None:
    bundle, path = Bundle.open(tiny_bundle), tmp_path / "shape_buckets.json"
    content = json.loads(json_from_record(params_of(bundle)))
    content["buckets"][1][name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(BadInputError, match=r"buckets\.json"):
        bucket_plan_from_file(path, bundle)


def test_buckets_beyond_the_model_raise(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle, path = Bundle.open(tiny_bundle), tmp_path / "shape_buckets.json"
    path.write_bytes(json_from_record(params_of(bundle, buckets=[bucket(1, 1, 64, 8192)])))
    with pytest.raises(BadInputError, match="model of 2048 positions"):
        bucket_plan_from_file(path, bundle)
    path.write_bytes(json_from_record(params_of(bundle, buckets=[bucket(64, 64, 2048, 64)])))
    with pytest.raises(BadInputError, match="window masks"):
        bucket_plan_from_file(path, bundle)
