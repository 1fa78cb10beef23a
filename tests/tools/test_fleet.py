"""The simulated fleet against exact results of queueing theory, and against the published table."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.tools.run_tool import run_tool
from tools.fleet import Costs, Decode, Decodes, Request, Scenario, simulate, table_of_scenario

from lopa.runtime.contract.sizes import Sizes

ROOT = Path(__file__).resolve().parents[2]
SCALE = ROOT / "docs" / "measurements" / "scale"
SECOND = 1000
"""Rows of a window whose forward takes one second."""
QUANTILES = -np.log1p(-(np.arange(800) + 0.5) / 800)
"""Quantiles of the exponential distribution with mean 1."""


def decode(windows: list[int], branches: int = 1) -> Decode:
    steps = tuple((branches, branches, window, 64) for window in windows)
    return Decode(branches=branches, prompt=1, tokens=10, steps=steps)


CONSTANT = [decode([SECOND])]
EXPONENTIAL = [decode([max(1, round(SECOND * each))]) for each in QUANTILES]


def by_rows(sizes: Sizes) -> float:
    return sizes.rows / SECOND


BY_ROWS = Costs(by_rows)


def requests_of(decodes: list[Decode], load: float, costs: Costs = BY_ROWS, **fields: Any) -> list[Request]:
    scenario = {
        "decodes": "",
        "costs": {"kind": "measured", "table": ""},
        "loads": [load],
        "branches": [1],
        "replicas": 1,
        "slots": 1,
        "queue": 1_000_000,
        "seconds": 20_000.0 / load,
        **fields,
    }
    return simulate(msgspec.convert(scenario, Scenario), decodes, costs, load)[0]


def mean_waiting(requests: list[Request]) -> float:
    return float(np.mean([each.started - each.arrived for each in requests if each.started]))


@pytest.mark.parametrize(
    ("decodes", "second_moment"), [(CONSTANT, 1.0), (EXPONENTIAL, 2.0)], ids=["constant", "exponential"]
)
def test_one_slot_follows_pollaczek_khinchine(decodes: list[Decode], second_moment: float) -> None:
    expected = 0.6 * second_moment / (2 * (1 - 0.6))
    assert mean_waiting(requests_of(decodes, 0.6, seed=3)) == pytest.approx(expected, rel=0.1)


def test_a_full_queue_rejects_as_often_as_theory_predicts() -> None:
    load, places = 0.9, 4
    found = requests_of(EXPONENTIAL, load, queue=places - 1, seconds=20_000.0, seed=2)
    refused = sum(each.refused for each in found) / len(found)
    assert refused == pytest.approx((1 - load) * load**places / (1 - load ** (places + 1)), rel=0.05)


def test_published_tables_are_reproduced(tmp_path: Path) -> None:
    rows = {row[0]: row for row in table_of_scenario(SCALE / "one.json").rows}
    assert rows["6, 1"][1:6] == ("6.23", "309", "309", "0 / 6", "50 / 209")
    page = (ROOT / "docs" / "measurements" / "scale.md").read_text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line]
    published = {line[0]: line[1:7] + line[8:] for line in lines if len(line) == 11}
    fields: dict[str, Any] = json.loads((SCALE / "accelerator.json").read_text())
    for name in ("decodes", "accelerator"):
        text = (SCALE / "decodes.json").read_text()
        (tmp_path / f"{name}.json").write_text(
            text if name == "decodes" else json.dumps({**fields, "loads": [20, 150]})
        )
    for row in table_of_scenario(tmp_path / "accelerator.json").rows:
        assert list(row[1:]) == published[row[0]]


@pytest.fixture
def scenario(tmp_path: Path) -> dict[str, Any]:
    decodes = Decodes(bundle="b", weights_sha256="", prompts=((decode([64, 32]), decode([64], 4)),))
    (tmp_path / "decodes.json").write_bytes(msgspec.json.encode(decodes))
    fields: dict[str, Any] = json.loads((SCALE / "accelerator.json").read_text())
    return {**fields, "loads": [10], "branches": [1, 4], "seconds": 20}


def test_the_example_in_the_documentation_is_valid(scenario: dict[str, Any], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "measure.md").read_text()
    example = page.partition("```json\n")[2].partition("```")[0]
    msgspec.json.decode(example, type=Scenario)
    named = {field for row in page.split("\n") if row.startswith("| `") for field in row.split("|")[1].split("`")[1::2]}
    assert named >= set(Scenario.__struct_fields__) - {"decodes"}
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    done = run_tool("measure", "fleet", "simulate", tmp_path / "scenario.json")
    assert (done.returncode, done.stdout.count("\n| 10, ")) == (0, 2), done.stderr
