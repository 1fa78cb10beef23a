"""lopa-export tune as users run it: result, saved presets, resume, time limit, text without answers, errors."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import lopa_export

from lopa.bench.comparison import candidates
from lopa.bench.comparison.candidates import Candidate
from lopa.runtime.bundle import Bundle
from lopa.tiny import EVAL

pytestmark = pytest.mark.slow

QUICK = Candidate(
    "threshold 0.95, first masked", {"strategy": "threshold", "skip_threshold": 0.95, "unmask_first_masked": True}
)
POOR = Candidate("threshold 0.3", {"strategy": "threshold", "skip_threshold": 0.3, "unmask_first_masked": True})


@pytest.fixture(autouse=True)
def _few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_block_candidates", lambda _: [POOR, QUICK])


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Return a file with the 40 first questions."""
    lines = [json.loads(line) for line in EVAL.read_text(encoding="utf-8").splitlines()]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(line | {"max_new_tokens": 64}) + "\n" for line in lines[:40]))
    return path


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "tune.json").read_text())
    return found


def test_tune_saves_presets_that_a_request_uses(bundle: Path, questions: Path, tmp_path: Path) -> None:
    out, plot = tmp_path / "out", tmp_path / "plot.png"
    done = lopa_export(
        "tune", bundle, "--eval", questions, "--threads", 1, "-o", out, "--plot", plot, "--save", "--seed", 3
    )
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = report(out)
    assert found["is_complete"]
    rows = {row["config"]: row for row in found["rows"]}
    assert rows["threshold 0.3"]["verdict"] == "lower"
    presets = {row["preset"]: row for row in found["presets"]}
    assert set(presets) == {"fast", "balanced", "exact"}
    chosen = {row["config"] for row in found["presets"]} - {"defaults"}  # the defaults, if nothing is faster
    assert chosen
    assert {rows[config]["questions"] for config in chosen} == {40}
    manifest = Bundle.open(bundle).manifest
    assert manifest.defaults == {"preset": "balanced"}
    assert manifest.presets["balanced"].options == presets["balanced"]["options"]
    assert manifest.params().strategy == presets["balanced"]["options"]["strategy"]
    assert presets["exact"]["options"]["strategy"] == "vanilla"
    text = lopa_export("generate", bundle, "Question: 1 + 1?\nAnswer:", "--max-new-tokens", 8)
    assert "preset balanced, 1 branch" in text.stderr
    slow = lopa_export("generate", bundle, "Question: 1 + 1?\nAnswer:", "--max-new-tokens", 8, "--preset", "exact")
    assert "preset exact" in slow.stderr
    assert "preset" not in lopa_export("generate", bundle, "1 + 1", "--strategy", "eb", "--max-new-tokens", 8).stderr
    assert "requests now decode with balanced" in done.stdout
    assert "\npreset      exact: strategy vanilla" in lopa_export("inspect", bundle).stdout


def test_text_without_answers_is_scored_by_agreement(bundle: Path, questions: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.loads(line) for line in questions.read_text().splitlines()[:32]]
    prompts.write_text("".join(json.dumps({"prompt": line["prompt"], "max_new_tokens": 48}) + "\n" for line in lines))
    done = lopa_export("tune", bundle, "--reference-text", prompts, "--threads", 1, "-o", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    found = report(tmp_path / "o")
    rows = {row["config"]: row for row in found["rows"]}
    assert rows["one token per step"]["score"] == 1.0
    assert 0 < rows["threshold 0.3"]["score"] < rows["defaults"]["score"] < 1
    assert "agreement with one token per step" in done.stdout


def test_other_precisions_are_compared_and_saved(
    bundle: Path, export_tiny: Callable[..., Path], questions: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "precisions"
    shutil.copytree(bundle, folder / "copy")
    shutil.copytree(export_tiny(with_logits=False, quantize="fp8"), folder / "fp8")
    out = tmp_path / "out"
    done = lopa_export("tune", bundle, "--eval", questions, "--threads", 1, "--precisions", folder, "-o", out, "--save")
    assert done.returncode == 0, done.stderr
    others = [row for row in report(out)["rows"] if row["config"].startswith(("copy: ", "fp8: "))]
    assert sorted(row["bundle"] for row in others) == ["copy", "fp8"]
    assert others[0]["options"] == others[1]["options"]
    fp8 = re.escape(next(row["config"] for row in others if row["bundle"] == "fp8"))  # of the fastest options
    assert re.search(rf"\| {fp8} .* (lower|not lower|not proven|slower) \| +fp8 \|", done.stdout)
    assert others[0]["options"] in [row["options"] for row in report(out)["rows"] if row["bundle"] == "bundle"]
    for name in ("copy", "fp8"):
        (folder / name).rename(tmp_path / f"another {name}")
    refused = lopa_export("tune", bundle, "--eval", questions, "--precisions", folder)
    assert refused.returncode == 2
    assert "without another bundle of the same checkpoint" in refused.stderr


def test_bad_input_is_refused_before_anything_is_decoded(bundle: Path, questions: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(questions.read_text().splitlines(keepends=True)[:29]))
    prompts = tmp_path / "unscored.jsonl"
    prompts.write_text('{"prompt": "a", "answer": "b", "kind": "code"}\n' * 40)
    for arguments, message in (
        (("--eval", few), "has 29 questions with a scoring"),
        (("--reference-text", few), "has 29 prompts"),
        ((), "give either --eval FILE or --reference-text FILE"),
        (("--eval", questions, "--reference-text", prompts), "give either"),
        (("--eval", questions, "--resume"), "--resume needs --output"),
        (("--eval", questions, "--budget", 0), "budget"),
        (("--eval", questions, "--limit", 4), "'--limit': 4 is not in the range x>=30"),
        (("--eval", questions, "--sweep", "branches=2"), "--sweep needs --strategies"),
        (("--eval", questions, "--strategies", "d2g"), "did you mean d2f?"),
        (("--eval", questions, "--strategies", "eb", "--sweep", "seed=1", "--save"), "'seed', which only requests can"),
    ):
        done = lopa_export("tune", bundle, *arguments)
        assert (done.returncode, message in done.stderr) == (2, True), (arguments, done.stderr)


def test_a_budget_that_is_too_short_prints_no_empty_table(bundle: Path, questions: Path) -> None:
    done = lopa_export("tune", bundle, "--eval", questions, "--threads", 1, "--budget", 1e-9)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "the time is over before anything was measured: give more time" in done.stderr
