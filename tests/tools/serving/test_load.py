"""tools/serving/load.py as it is run, short, and what it makes of runs. No test looks at a time."""

import json
from pathlib import Path

import pytest
from tests.tools.test_soak import run_tool
from tools.serving.load_report import Pair, between_rounds, outside_share
from tools.serving.runs import LoadRun

FORMS = ("whole", "streamed", "with drafts")


def test_the_same_requests_give_the_same_over_http_and_in_process(tiny_bundle: Path, tmp_path: Path) -> None:
    counts = ("--clients", "1,3", "--requests", 4, "--rounds", 1, "--tokens", 12, "--slots", 2)
    done = run_tool("serving.load", tiny_bundle, *counts, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "load.json").read_text())
    assert [(each["form"], each["clients"]) for each in report["measured"]] == [
        (form, clients) for clients in (1, 3) for form in FORMS
    ]
    runs = [run for each in report["measured"] for pair in each["pairs"] for run in (pair["http"], pair["engine"])]
    assert len(runs) == 12
    assert {(run["tokens"], run["steps"], len(run["whole"])) for run in runs} == {
        (runs[0]["tokens"], runs[0]["steps"], 4)
    }
    assert 0 < runs[0]["tokens"] <= 48
    assert all(0 < run["in_rounds"] < run["wall"] for run in runs)
    alone = [run["rounds"] for each in report["measured"] if each["clients"] == 1 for run in each["pairs"][0].values()]
    assert set(alone) == {runs[0]["steps"]}
    for each in report["measured"]:
        for run in each["pairs"][0].values():
            assert len(run["first_text"]) == (0 if each["form"] == "whole" else 4)
    tables = (tmp_path / "out" / "load.md").read_text()
    assert tables.strip() == done.stdout.strip()
    assert sum(line.startswith("| ") for line in tables.splitlines()) == 4 * 2 + 2 * 6  # heads with rules, and loads


@pytest.mark.parametrize("clients", ["1,,2", "0"])
def test_numbers_of_clients_that_are_none_are_refused(tiny_bundle: Path, tmp_path: Path, clients: str) -> None:
    done = run_tool("serving.load", tiny_bundle, "--clients", clients, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "--clients" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_time_outside_the_engine_is_told_per_token() -> None:
    http, engine = LoadRun(wall=5.0, tokens=100, in_rounds=4.0), LoadRun(wall=3.0, tokens=75, in_rounds=3.0)
    assert outside_share(Pair(http, engine)) == pytest.approx(0.2)
    assert (between_rounds(http), between_rounds(engine)) == (pytest.approx(0.2), 0.0)
