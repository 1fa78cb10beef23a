"""Cost tables: validation, interpolation and extrapolation."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import (
    CostTable,
    DeviceCosts,
    ForwardCost,
    costs_from_bundle,
    costs_from_file,
    costs_name,
)
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.errors import BadInputError


def costs_of(bundle: Bundle, **changes: object) -> DeviceCosts:
    """Return costs with seconds = branches x window x (1000 + prefix) microseconds, which is linear along each axis."""
    points = [
        ForwardCost(branches=b, window=w, prefix=p, seconds=b * w * (1000 + p) * 1e-6)
        for b in (1, 2, 4)
        for w in (32, 64)
        for p in (64, 128)
    ]
    costs = DeviceCosts(
        schema=2,
        contract=1,
        device="cpu",
        machine="test",
        threads=1,
        weights_sha256=bundle.manifest.weights_digest,
        measured="2026-11-21",
        host_seconds=1e-4,
        host_seconds_a_branch=2e-5,
        points=points,
    )
    return msgspec.structs.replace(costs, **changes)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def test_time_is_interpolated_linearly_and_extrapolated_in_proportion(bundle: Bundle) -> None:
    table = CostTable(costs_of(bundle))

    def expected(branches: float, window: float, prefix: float) -> float:
        return branches * window * (1000 + prefix) * 1e-6

    for sizes in ((1, 32, 64), (4, 64, 128), (3, 48, 96), (2, 33, 127)):
        assert table.seconds(*sizes) == pytest.approx(expected(*sizes))
    assert table.seconds(8, 128, 128) == pytest.approx(expected(8, 128, 128))
    assert table.seconds(1, 32, 256) == pytest.approx(2 * expected(1, 32, 128))
    assert table.seconds(1, 1, 64) == pytest.approx(expected(1, 32, 64))
    assert table.seconds(3, 48, 96) == table.seconds(3, 48, 96)
    assert [table.host_seconds(branches) for branches in (1, 4)] == pytest.approx([1e-4, 1.6e-4])


def test_table_round_trips(bundle: Bundle) -> None:
    costs = costs_of(bundle)
    (bundle.path / costs_name("cpu")).write_bytes(json_from_record(costs))
    assert costs_from_bundle(bundle, "cpu", 1).costs == costs
    assert costs_name("cuda:0") == "costs.cuda-0.json"


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        ({"device": "cuda:0"}, "device cuda:0"),
        ({"schema": 7}, "schema version 7"),
        ({"schema": 1}, "schema version 1"),
        ({"threads": 2}, "threads 2"),
        ({"weights_sha256": "0" * 64}, "weights 000"),
    ],
)
def test_table_of_another_bundle_or_device_raises(bundle: Bundle, changes: dict[str, object], received: str) -> None:
    (bundle.path / costs_name("cpu")).write_bytes(json_from_record(costs_of(bundle, **changes)))
    with pytest.raises(BadInputError) as caught:
        costs_from_bundle(bundle, "cpu", 1)
    assert received in caught.value.received
    assert caught.value.remedy.startswith("update lopa-export, or") == (changes.get("schema") == 7)
    assert f"lopa-export bench costs {bundle.path} --device cpu --threads 1 " in caught.value.remedy


def test_invalid_table_raises(bundle: Bundle) -> None:
    path = bundle.path / costs_name("cpu")
    with pytest.raises(BadInputError, match="does not exist"):
        costs_from_bundle(bundle, "cpu", 1)
    costs = costs_of(bundle)
    for points in ([], costs.points[1:], [*costs.points[1:], msgspec.structs.replace(costs.points[0], seconds=0.0)]):
        path.write_bytes(json_from_record(msgspec.structs.replace(costs, points=points)))
        with pytest.raises(BadInputError, match="points"):
            costs_from_bundle(bundle, "cpu", 1)
    path.write_text('{"schema": 1}')
    with pytest.raises(BadInputError, match="contract"):
        costs_from_bundle(bundle, "cpu", 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("branches", value) for value in (0, -1, 2**31, 10**30, 1.5)),
        *(("window", value) for value in (0, 2**63)),
        *(("prefix", value) for value in (-64, 2**63)),
        *(("seconds", value) for value in (0, -1.0, 1e300, None)),
    ],
)
def test_point_out_of_range_raises(bundle: Bundle, name: str, value: object) -> None:
    path = bundle.path / costs_name("cpu")
    content = json.loads(json_from_record(costs_of(bundle)))
    content["points"][1][name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(BadInputError, match=name):
        costs_from_file(path)


def test_repeated_point_raises_even_if_the_count_matches(bundle: Bundle) -> None:
    path = bundle.path / costs_name("cpu")
    content = json.loads(json_from_record(costs_of(bundle)))
    content["points"][1] = content["points"][0]
    path.write_text(json.dumps(content))
    with pytest.raises(BadInputError, match="1 of them repeated"):
        costs_from_file(path)
