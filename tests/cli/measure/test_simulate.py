"""lopa-export bench simulate: tables, JSON, a plot, bad input, and decodes recorded by bench decodes."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.bench.fleet.materials import decode, decodes_of
from tests.bench.fleet.test_scenario import COSTS, MODELLED, SCENARIO
from tests.cli.command import lopa_export
from tests.cli.measure.test_bench import bench

from lopa.bench.fleet.decodes import text_of_decodes
from lopa.runtime.install_hint import pip_install

DECODES = decodes_of([decode([64, 32]), decode([64], branches=2)])


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "decodes.json").write_bytes(text_of_decodes(DECODES))
    (tmp_path / "costs.json").write_bytes(msgspec.json.encode(COSTS))
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({**SCENARIO, "price_per_hour": 2.0}))
    return path


def changed(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return path


def test_tables_show_every_load_and_its_best_configuration(scenario: Path) -> None:
    done = lopa_export("bench", "simulate", scenario)
    assert done.returncode == 0, done.stderr
    for point in ("1, 1", "1, 2", "2.5, 1", "2.5, 2"):
        assert f"\n| {point}" in done.stdout
    assert "Best number of branches per load" in done.stdout


def test_the_report_is_the_same_each_time_and_the_plot_a_png(scenario: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plots" / "fleet.png"
    first = lopa_export("bench", "simulate", scenario, "--json", "--plot", plot)
    second = lopa_export("bench", "simulate", scenario, "--json")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    report = json.loads(first.stdout)
    assert [(each["load"], each["branches"]) for each in report["points"]] == [
        (load, branches) for load in (1.0, 2.5) for branches in (1, 2)
    ]
    assert all(each["cost_per_million_tokens"] > 0 for each in report["points"])
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_modelled_costs_need_no_table(scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "costs.json").unlink()
    done = lopa_export("bench", "simulate", changed(scenario, costs=MODELLED))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"replicas": 0}, "$.replicas"),
        ({"loads": [-3]}, "$.loads[0]"),
        ({"branches": [3]}, "recorded numbers: 1, 2"),
        ({"extra": 1}, "extra"),
    ],
)
def test_an_invalid_scenario_exits_with_2_and_writes_nothing(
    scenario: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    done = lopa_export("bench", "simulate", changed(scenario, **fields), "--plot", tmp_path / "plots" / "none.png")
    assert done.returncode == 2
    assert message in done.stderr
    assert "what to do" in done.stderr
    assert not (tmp_path / "plots").exists()


def test_without_simpy_the_error_names_the_extra(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith(("simpy", "lopa.bench.fleet"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "simpy", None)
    done = lopa_export("bench", "simulate", scenario)
    assert done.returncode == 3
    assert pip_install("simulate") in done.stderr


def test_decodes_of_a_bundle_are_recorded_for_it(tiny_bundle: Path, tmp_path: Path) -> None:
    done = bench("decodes", tiny_bundle, "--branches", "1,2", "--limit", 1, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "tokens/step" in done.stdout
    (tmp_path / "scenario.json").write_text(json.dumps({**SCENARIO, "decodes": "out/decodes.json", "costs": MODELLED}))
    assert lopa_export("bench", "simulate", tmp_path / "scenario.json").returncode == 0


@pytest.mark.parametrize("counts", ["0", "1,1", "two", "1000"])
def test_invalid_numbers_of_branches_are_rejected(tiny_bundle: Path, tmp_path: Path, counts: str) -> None:
    done = bench("decodes", tiny_bundle, "--branches", counts, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()
