"""bench quality --resume: existing outcomes are not decoded again, outcomes of another run are rejected."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import lopa_export

from lopa.bench.comparison import decodes, quality_run
from lopa.tiny import EVAL

KEPT, REPORT = "quality.outcomes.jsonl", "quality.json"
Key = tuple[str, str, str]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality_run, "MAX_NEW_TOKENS", 16)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    lines = [json.loads(line) for line in EVAL.read_text(encoding="utf-8").splitlines()[:3]]
    lines[1]["task_id"] = "A/1"
    path = tmp_path / "eval.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[None]]:
    """Return a function that counts the decodes of a run and interrupts it after `limit` of them."""

    def counting(limit: int = 1000) -> list[None]:
        decode, made = decodes.Decodes._decode, list[None]()

        def limited(*given: Any) -> Any:
            if len(made) == limit:
                raise KeyboardInterrupt
            made.append(None)
            return decode(*given)

        monkeypatch.setattr(decodes.Decodes, "_decode", limited)
        return made

    return counting


def bench(bundle: Path, prompts: Path, output: Path, *options: object) -> subprocess.CompletedProcess[str]:
    strategies = () if "--strategies" in options else ("--strategies", "d2f")
    return lopa_export("bench", "quality", bundle, prompts, "--threads", 1, "--output", output, *strategies, *options)


def outcomes_of(output: Path) -> dict[Key, dict[str, Any]]:
    """Return the outcomes by prompt, configuration and options."""
    records = [json.loads(line) for line in (output / KEPT).read_text().splitlines()[1:]]
    return {(each["prompt"], each["config"], each["options"]): each for each in records}


def rows_of(output: Path) -> dict[str, int]:
    """Return the number of prompts of every configuration in the report."""
    return {row["config"]: row["measure"]["prompts"] for row in json.loads((output / REPORT).read_text())["rows"]}


def test_an_interrupted_run_continues(
    tiny_bundle: Path,
    prompts: Path,
    tmp_path: Path,
    counted: Callable[..., list[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, output = tmp_path / "whole", tmp_path / "out"
    assert bench(tiny_bundle, prompts, whole).returncode == 0
    counted(1 + 6)  # one decode at the start, 4 configurations of a prompt, and 2 of the next
    stopped = bench(tiny_bundle, prompts, output)
    assert stopped.returncode not in (0, 2)
    assert f"{output} holds 6 outcomes: --resume continues after them" in stopped.stderr.replace("\n", " ")
    monkeypatch.undo()
    monkeypatch.setattr(quality_run, "MAX_NEW_TOKENS", 16)
    assert [path.name for path in output.iterdir() if path.is_file()] == [KEPT]
    before = [json.loads(line) for line in (output / KEPT).read_text().splitlines()[1:]]
    assert len(before) == 6
    with (output / KEPT).open("a") as file:
        file.write('{"prompt":"12')  # simulates a crash of the machine
    made = counted()
    done = bench(tiny_bundle, prompts, output, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"{output} holds 6 outcomes, which are kept" in done.stderr.replace("\n", " ")
    assert len(made) == 1 + 6
    assert sorted(path.name for path in output.iterdir()) == ["quality.json", "quality.md", KEPT, "samples"]
    found, expected = outcomes_of(output), outcomes_of(whole)
    assert all(record in found.values() for record in before)
    assert found.keys() == expected.keys()
    for key, record in found.items():
        for name in ("score", "steps", "tokens", "generated_positions"):
            assert record["outcome"][name] == expected[key]["outcome"][name]
    for name in (each.name for each in (whole / "samples").iterdir()):
        assert (output / "samples" / name).read_text() == (whole / "samples" / name).read_text()


def test_a_finished_run_accepts_more_strategies_and_prompts(
    tiny_bundle: Path, prompts: Path, tmp_path: Path, counted: Callable[..., list[None]]
) -> None:
    output = tmp_path / "out"
    assert bench(tiny_bundle, prompts, output, "--limit", 2).returncode == 0
    before = outcomes_of(output)
    made, d2f = counted(), [f"d2f {value}" for value in (0.95, 0.9, 0.8, 0.7)]
    done = bench(tiny_bundle, prompts, output, "--resume", "--strategies", "vanilla")
    assert (done.returncode, len(made)) == (0, 1 + 3), done.stderr
    assert f"the report leaves out {', '.join(d2f)}, which did not decode all" in done.stderr
    assert rows_of(output) == {"vanilla": 3}
    done = bench(tiny_bundle, prompts, output, "--resume", "--strategies", "d2f")
    assert (done.returncode, len(made)) == (0, 1 + 3 + 1 + 4), "another prompt with d2f"
    after = outcomes_of(output)
    assert {key: after[key] for key in before} == before
    assert rows_of(output) == dict.fromkeys(["vanilla", *d2f], 3), "rows of other strategies stay"
    assert not bench(tiny_bundle, prompts, output, "--resume", "--strategies", "eb", "--sweep", "gamma=inf").returncode
    made.clear()
    again = bench(tiny_bundle, prompts, output, "--resume", "--strategies", "vanilla")
    assert (again.returncode, len(made)) == (0, 0)
    assert "leaves out" not in again.stderr
    assert after.items() <= outcomes_of(output).items()
    assert rows_of(output) == dict.fromkeys([*d2f, "eb gamma=inf", "vanilla"], 3)


CHANGES: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("prompts", "sha256"), "0" * 64, "outcomes of another file of prompts"),
    (("run", "bundle_sha256"), "0" * 64, "outcomes of another bundle"),
    (("run", "threads"), 7, "outcomes of another number of threads"),
    (("run", "device"), "numpy", "outcomes of another device"),
    (("run", "machine", "cores"), "many", "Expected `int`"),
]
"""Places in the first line, another value there, and the error."""


def test_outcomes_of_another_run_are_rejected(tiny_bundle: Path, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert bench(tiny_bundle, prompts, output, "--limit", 1).returncode == 0
    header, *lines = (output / KEPT).read_text().splitlines(keepends=True)
    for (*path, last), value, message in CHANGES:
        changed = json.loads(header)
        place = changed
        for name in path:
            place = place[name]
        place[last] = value
        written = json.dumps(changed) + "\n" + "".join(lines)
        (output / KEPT).write_text(written)
        done = bench(tiny_bundle, prompts, output, "--limit", 1, "--resume")
        assert done.returncode == 2
        assert message in done.stderr.replace("\n", " "), done.stderr
        assert (output / KEPT).read_text() == written


def test_a_report_is_replaced_only_on_request(tiny_bundle: Path, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert bench(tiny_bundle, prompts, output, "--limit", 1, "--strategies", "vanilla").returncode == 0
    for kept in (REPORT, "quality.md", KEPT):  # an interrupted run leaves outcomes only
        before = (output / kept).read_bytes()
        refused = bench(tiny_bundle, prompts, output, "--limit", 1)
        assert refused.returncode == 2
        assert f"{output} holds an earlier report: {kept}" in refused.stderr
        assert "choose another --output, --resume or --overwrite" in refused.stderr
        assert (output / kept).read_bytes() == before
        if kept != KEPT:
            (output / kept).unlink()
    assert bench(tiny_bundle, prompts, output, "--limit", 1, "--overwrite").returncode == 0
    assert {config for _, config, _ in outcomes_of(output)} == {f"d2f {value}" for value in (0.95, 0.9, 0.8, 0.7)}


def test_resume_needs_an_output(tiny_bundle: Path, prompts: Path) -> None:
    done = lopa_export("bench", "quality", tiny_bundle, prompts, "--resume")
    assert done.returncode == 2
    assert "--resume needs --output" in done.stderr
