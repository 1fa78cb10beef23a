"""Bundles of other families on the command line: a recording of each reproduced, plans, benchmarks, inspect."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import lopa_export
from tests.conformance.family_traces import FAMILIES, read_family_traces

RECORDED = {
    "llada": (
        "fast_dual_b32_t09",
        ["--strategy", "threshold", "--cache", "dual", "--block-size", 32, "--skip-threshold", 0.9],
        ["--max-new-tokens", 64, "--no-stop-at-eos"],
    ),
    "fast_dllm_v2": (
        "batch_s8_t09_blockcache",
        ["--strategy", "threshold", "--cache", "sub_block", "--sub-block", 8, "--skip-threshold", 0.9],
        ["--max-new-tokens", 64],
    ),
}
"""Files of recorded traces, with the options that reproduce them beyond the bundle's defaults."""


@pytest.mark.parametrize("family", RECORDED)
def test_a_recording_is_reproduced(family: str, family_bundle: Callable[..., Path], tmp_path: Path) -> None:
    name, loop, length = RECORDED[family]
    _, traces = read_family_traces(FAMILIES / family / "traces" / f"{name}.jsonl.gz")
    traces = [trace for trace in traces if trace["min_margin"] > 1e-4][:3]
    assert len(traces) == 3
    prompts, trace = tmp_path / "prompts.jsonl", tmp_path / "trace.jsonl"
    prompts.write_text("".join(json.dumps({"prompt_ids": each["prompt_ids"]}) + "\n" for each in traces))
    done = lopa_export(
        *("generate", family_bundle(family), "--prompts", prompts, "--step-log", trace, "--threads", 1, "--reference"),
        *loop,
        *length,
    )
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in trace.read_text().splitlines()[1:]]
    for number, recorded in enumerate(traces, start=1):  # requests are numbered by line
        ours = [sorted(step["unmasked"]) for step in steps if step["request"] == number and step["unmasked"]]
        theirs = [sorted([place, token] for place, token, _ in step["fills"]) for step in recorded["steps"]]
        assert ours == [fills for fills in theirs if fills]
        assert {step["prompt"] for step in steps if step["request"] == number} == {len(recorded["prompt_ids"])}


@pytest.fixture
def bundle(family_bundle: Callable[..., Path], tmp_path: Path) -> Path:
    """Return a private copy of the bundle, since the tests write a plan into it."""
    return Path(shutil.copytree(family_bundle("sdar"), tmp_path / "sdar"))


def test_a_plan_a_timeline_and_an_inspection(bundle: Path, tmp_path: Path) -> None:
    trace, timeline = tmp_path / "trace.jsonl", tmp_path / "timeline.json"
    options: list[Any] = ["--step-log", trace, "--timeline", timeline, "--threads", 1, "--max-new-tokens", 24]
    done = lopa_export("generate", bundle, "Question: 2 + 3?", *options)
    assert done.returncode == 0, done.stderr
    assert "1 branch: threshold does not look ahead" in done.stderr
    assert len(json.loads(timeline.read_text())["traceEvents"]) > 3
    planned = lopa_export("plan", bundle, "--step-log", trace, "--buckets", 2)
    assert planned.returncode == 0, planned.stderr
    assert (bundle / "shape_buckets.json").is_file()
    shown = lopa_export("inspect", bundle)
    assert shown.returncode == 0
    little = "blocks of 4, one at a time, leave at most 3 positions for lookahead branches"
    assert little in shown.stdout
    looked = lopa_export("generate", bundle, "Question: 2 + 3?", "--strategy", "lopa", "--max-new-tokens", 8)
    assert looked.returncode == 0, looked.stderr
    assert little in looked.stderr


def test_quality_of_every_strategy(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lopa.bench.comparison.quality_run.MAX_NEW_TOKENS", 32)
    prompts = tmp_path / "eval.jsonl"
    prompts.write_text(json.dumps({"id": "one", "kind": "wp", "prompt": "Question: 2 + 3?", "answer": "5"}) + "\n")
    done = lopa_export("bench", "quality", bundle, prompts, "--threads", 1, "--output", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "report" / "quality.json").read_text())["rows"]
    assert [row["config"] for row in rows][:3] == ["vanilla", "threshold", "d2f"]
    assert all(row["measure"]["tokens"] > 0 for row in rows)
