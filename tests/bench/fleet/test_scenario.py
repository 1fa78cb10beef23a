"""Scenario files: valid ones are read, and every invalid value is rejected."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.bench.fleet.materials import decode, decodes_of

from lopa.bench.fleet.decodes import decodes_from_file, text_of_decodes
from lopa.bench.fleet.scenario import Scenario, material_from_file
from lopa.runtime.bundle.costs import COSTS_SCHEMA, DeviceCosts, ForwardCost
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.errors import BadInputError

ROOT = Path(__file__).resolve().parents[3]
MEASURED = ROOT / "docs" / "measurements" / "scale"
MODELLED = {
    "kind": "modelled",
    "parameters": 7.6e9,
    "weight_bytes": 15.2e9,
    "cache_row_bytes": 57344,
    "operations": 9.89e14,
    "bandwidth": 4.8e12,
    "round_seconds": 0.014,
}
SCENARIO: dict[str, Any] = {
    "schema": 1,
    "decodes": "decodes.json",
    "costs": {"kind": "measured", "table": "costs.json"},
    "loads": [1, 2.5],
    "branches": [1, 2],
    "replicas": 2,
    "slots": 8,
    "queue": 16,
    "seconds": 10,
}
DECODES = decodes_of([decode([64, 32]), decode([64], branches=2)])
COSTS = DeviceCosts(
    schema=COSTS_SCHEMA,
    contract=CONTRACT_VERSION,
    device="cpu",
    machine="some",
    threads=1,
    weights_sha256="",
    measured="",
    host_seconds=0.001,
    host_seconds_a_branch=0.0,
    points=[ForwardCost(branches=1, window=32, prefix=64, seconds=0.002)],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "decodes.json").write_bytes(text_of_decodes(DECODES))
    (tmp_path / "costs.json").write_bytes(msgspec.json.encode(COSTS))
    return tmp_path


def scenario_file(folder: Path, text: str) -> Path:
    path = folder / "scenario.json"
    path.write_text(text)
    return path


def test_a_scenario_is_read_with_its_files(folder: Path) -> None:
    material = material_from_file(scenario_file(folder, json.dumps(SCENARIO)))
    assert material.decodes.counts == (1, 2)
    assert material.table is not None
    assert material.scenario.branches == (1, 2)
    assert material_from_file(scenario_file(folder, json.dumps({**SCENARIO, "costs": MODELLED}))).table is None


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("loads", [-1], "loads[0]"),
        ("loads", [0], "loads[0]"),
        ("loads", [], "loads"),
        ("loads", [1, 1], "each value once"),
        ("loads", [1e6], "requests in one load"),
        ("branches", [4], "1, 2"),
        ("branches", ["auto"], "branches[0]"),
        ("branches", [1, "load"], "branches[1]"),
        ("branches", [1, 1], "each value once"),
        ("branches", [0], "branches[0]"),
        ("replicas", 0, "replicas"),
        ("replicas", 1.5, "replicas"),
        ("slots", 0, "slots"),
        ("queue", -1, "queue"),
        ("seconds", 0, "seconds"),
        ("warm_up_seconds", 10, "warm-up"),
        ("deadline_seconds", -0.5, "deadline_seconds"),
        ("price_per_hour", -1, "price_per_hour"),
        ("routing", "sticky", "routing"),
        ("arrivals", {"process": "bursty"}, "without a variation"),
        ("arrivals", {"process": "poisson", "variation": 2}, "with a variation"),
        ("arrivals", {"process": "bursty", "variation": 0.5}, "variation"),
        ("prompts", {"different": 0}, "different"),
        ("prefix_cache_tokens", 100, "block_causal"),
        ("retry", {"times": 0, "after_seconds": 1}, "times"),
        ("failures", {"mean_seconds_between": 0, "repair_seconds": 1, "again": True}, "mean_seconds_between"),
        ("failures", {"mean_seconds_between": 5, "repair_seconds": 1}, "again"),
        ("costs", {**MODELLED, "bandwidth": 0}, "bandwidth"),
        ("costs", {"kind": "guessed"}, "kind"),
        ("costs", {"kind": "measured", "table": "none.json"}, "none.json does not exist"),
        ("costs", {"kind": "measured", "table": "costs.json", "slowdown": 0}, "slowdown"),
        ("decodes", "none.json", "none.json does not exist"),
        ("schema", 2, "schema version 2"),
        ("slot", 8, "slot"),
    ],
)
def test_invalid_values_are_rejected_by_name(folder: Path, field: str, value: Any, message: str) -> None:
    with pytest.raises(BadInputError) as refused:
        material_from_file(scenario_file(folder, json.dumps({**SCENARIO, field: value})))
    assert message in str(refused.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-Infinity"])
def test_non_finite_numbers_are_rejected(folder: Path, number: str) -> None:
    text = json.dumps(SCENARIO).replace('"seconds": 10', f'"seconds": {number}')
    with pytest.raises(BadInputError):
        material_from_file(scenario_file(folder, text))


def test_costs_of_another_bundle_are_rejected(folder: Path) -> None:
    other = msgspec.structs.replace(COSTS, weights_sha256="other")
    (folder / "costs.json").write_bytes(msgspec.json.encode(other))
    with pytest.raises(BadInputError, match="another bundle"):
        material_from_file(scenario_file(folder, json.dumps(SCENARIO)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"schema":1', '"schema":7', "schema version 7"),
        ('"tokens":10', '"tokens":-1', "tokens"),
        ("[1,1,64,64]", "[1,1,0,64]", ">= 1"),
        ("[1,1,64,64]", "[1,1,64]", "length 4"),
        ('"branches":2', '"branches":1', "distinct"),
        ('"prompt_rows":0', '"prompt_rows":65', "65 rows"),
    ],
)
def test_invalid_decodes_are_rejected(folder: Path, old: str, new: str, message: str) -> None:
    path = folder / "decodes.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BadInputError, match=message):
        decodes_from_file(path)


def test_the_example_in_the_documentation_is_valid(folder: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "measure.md").read_text()
    example = page.partition("```json\n")[2].partition("```")[0]
    decodes = decodes_of([decode([64, 32]), decode([64], branches=4)])
    (folder / "decodes.json").write_bytes(text_of_decodes(decodes))
    (folder / "costs.cpu.json").write_bytes(msgspec.json.encode(COSTS))
    assert material_from_file(scenario_file(folder, example)).scenario.branches == (1, 4)
    named = {field for row in page.split("\n") if row.startswith("| `") for field in row.split("|")[1].split("`")[1::2]}
    assert named >= set(Scenario.__struct_fields__) - {"schema", "decodes"}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(MEASURED.glob("*.json")) if b'"loads"' in path.read_bytes()],
    ids=lambda path: path.name,
)
def test_measured_scenarios_are_valid(path: Path) -> None:
    assert list(material_from_file(path).scenario.loads) == json.loads(path.read_bytes())["loads"]
