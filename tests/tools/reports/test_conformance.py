"""Replay of the recordings in another folder counts agreements and reports differences."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.conformance.family_traces import FAMILIES, read_family_traces
from tests.conformance.infill_recordings import INFILL, bundle_name_of_infill, infill_files
from tools.reports.conformance import main


def test_a_changed_decision_is_reported(family_bundle: Callable[..., Path], tmp_path: Path) -> None:
    with gzip.open(FAMILIES / "sdar" / "traces" / "b4_sequential.jsonl.gz", "rt") as lines:
        header, first, second = (json.loads(next(lines)) for _ in range(3))
    second["steps"][1]["fills"][0][1] += 1
    (tmp_path / "sdar" / "traces").mkdir(parents=True)
    with gzip.open(tmp_path / "sdar" / "traces" / "mine.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, first, second))
    bundle = family_bundle("sdar")
    done = CliRunner().invoke(main, [str(bundle.parent), "cpu", "--traces", str(tmp_path), "--dialect", "portable"])
    assert done.exit_code == 1
    steps = len(first["steps"]) + 2
    assert f"| sdar mine | 1 | 2 | {steps} | 0 | 0 | 0 | 1 | 0 |" in done.stdout
    assert f"sdar mine on 1: prompt {second['i']} step 1: fills [(" in done.stderr
    empty = CliRunner().invoke(main, [str(bundle.parent), "cpu", "--traces", str(tmp_path / "sdar")])
    assert empty.exit_code == 2
    assert "has no FAMILY/traces" in empty.stderr


def test_recordings_of_holes_are_replayed(family_bundle: Callable[..., Path], tmp_path: Path) -> None:
    with gzip.open(INFILL / "llada_t05_hole.jsonl.gz", "rt") as lines:
        header, first, second = (json.loads(next(lines)) for _ in range(3))
    second["steps"][0]["fills"][0][1] += 1
    with gzip.open(tmp_path / "mine.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, first, second))
    bundles = str(family_bundle("llada").parent)
    done = CliRunner().invoke(main, [bundles, "cpu", "--traces", str(tmp_path)])
    assert done.exit_code == 1, done.output
    assert f"| mine | 1 | 2 | {len(first['steps']) + 1} | 0 | 0 | 0 | 1 | 0 |" in done.stdout
    assert f"mine on 1: trace {second['i']} step 0: [(" in done.stderr
    header["rule"]["name"] = "p2"
    with gzip.open(tmp_path / "mine.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, first))
    unknown = CliRunner().invoke(main, [bundles, "cpu", "--traces", str(tmp_path)])
    assert unknown.exit_code == 1
    assert "a recording with the rule 'p2'" in unknown.stderr


def test_models_of_recordings_of_holes(tmp_path: Path) -> None:
    names = {path.name.split(".")[0]: bundle_name_of_infill(path) for path in infill_files()}
    assert names["llada_one_all"] == "llada"
    assert names["dream_t09_b4"] == "dream"
    assert names["dreamon_entropy_pad"] == names["dreamon_maskgit_nopad"]
    header, _ = read_family_traces(INFILL / "dreamon_entropy_pad.jsonl.gz")
    with gzip.open(tmp_path / "other.jsonl.gz", "wt") as file:
        file.write(json.dumps({**header, "head_rows": header["head_rows"][:1]}) + "\n")
    assert bundle_name_of_infill(tmp_path / "other.jsonl.gz") not in names.values()


def test_a_recording_without_traces_is_a_usage_error(tmp_path: Path) -> None:
    header, _ = read_family_traces(INFILL / "llada_one_all.jsonl.gz")
    with gzip.open(tmp_path / "none.jsonl.gz", "wt") as file:
        file.write(json.dumps(header) + "\n")
    done = CliRunner().invoke(main, [str(tmp_path), "cpu", "--traces", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert "none.jsonl.gz: no trace behind the first line" in done.stderr


@pytest.mark.parametrize("arguments", [["cpu", "--devices", "0"], ["cpu", "--devices", "x"], ["cpu", "--devices", ""]])
def test_numbers_of_sessions_are_checked(arguments: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [str(tmp_path), *arguments])
    assert done.exit_code == 2, done.output
    assert "numbers of at least 1" in done.stderr


@pytest.mark.parametrize("device", ["cpu:{", "cpu:{x}", "cpu:{1}", "cpu:{0.x}"])
def test_other_fields_of_devices_are_a_usage_error(device: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [str(tmp_path), device])
    assert done.exit_code == 2, done.output
    assert "only field" in done.stderr
