"""The simulated fleet against the published tables."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tools.run_tool import run_tool
from tools.fleet import Decode, Decodes, Scenario, table_of_scenario

ROOT = Path(__file__).resolve().parents[2]
SCALE = ROOT / "docs" / "measurements" / "scale"


def decode(windows: list[int], branches: int = 1) -> Decode:
    steps = tuple((branches, branches, window, 64) for window in windows)
    return Decode(branches=branches, prompt=1, tokens=10, steps=steps)


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
    example = page.partition("scenario.json << 'END'\n")[2].partition("\nEND\n")[0]
    msgspec.json.decode(example, type=Scenario)
    named = {field for row in page.split("\n") if row.startswith("| `") for field in row.split("|")[1].split("`")[1::2]}
    assert named >= set(Scenario.__struct_fields__) - {"decodes"}
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    done = run_tool("measure", "fleet", "simulate", tmp_path / "scenario.json")
    assert (done.returncode, done.stdout.count("\n| 10, ")) == (0, 2), done.stderr
