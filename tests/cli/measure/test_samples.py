"""bench quality on prompts of other projects' harnesses: files of samples."""

import json
from pathlib import Path

from tests.cli.command import lopa_export

from lopa.bench.comparison.variants import variants_from_text
from lopa.runtime.decoder import Decoder

SUM = "Question: Ivy has 3 shells and finds 4 more. How many shells has Ivy now?\nAnswer:"


def write_lines(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_samples_of_every_configuration(tiny_bundle: Path, tmp_path: Path) -> None:
    common = {"answer": "", "kind": "humaneval", "max_new_tokens": 8}
    lines = [{"prompt": SUM, **common, "task_id": "A/1"}, {"prompt": SUM, **common, "stop": [" "], "task_id": "A/2"}]
    path = write_lines(tmp_path / "set.jsonl", [*lines, {"prompt": SUM, **common}])
    out = tmp_path / "out"
    done = lopa_export("bench", "quality", tiny_bundle, path, "--strategies", "threshold", "--output", out)
    assert done.returncode == 0, done.stderr
    assert "score %" not in done.stdout, "its harness scores it"
    names = [variant.name.replace(" ", "-") for variant in variants_from_text("threshold")]
    assert sorted(each.stem for each in (out / "samples").iterdir()) == sorted(names)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        config = decoder.config(strategy="threshold", skip_threshold=0.9, max_new_tokens=8)
        (whole,) = decoder.generate([SUM], config)
    samples = [json.loads(line) for line in (out / "samples" / "threshold-0.9.jsonl").read_text().splitlines()]
    assert samples == [{"task_id": "A/1", "completion": whole.text}, {"task_id": "A/2", "completion": ""}]
    assert whole.text.startswith(" ")


def test_no_samples_for_prompts_without_task_ids(tiny_bundle: Path, tmp_path: Path) -> None:
    line: dict[str, object] = {"prompt": SUM, "answer": "a, b", "kind": "x", "scoring": "list", "max_new_tokens": 8}
    path = write_lines(tmp_path / "set.jsonl", [line])
    out, plot = tmp_path / "out", tmp_path / "plot.png"
    plot.write_bytes(b"earlier")
    options = ("--strategies", "drawn", "--output", out, "--plot", plot, "--overwrite")
    done = lopa_export("bench", "quality", tiny_bundle, path, *options)
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert sorted(each.name for each in out.iterdir()) == ["quality.json", "quality.md", "quality.outcomes.jsonl"]
    row = json.loads((out / "quality.json").read_text())["rows"][-1]
    assert row["options"]["tokens_per_step"] == 8


def test_a_chat_for_a_bundle_without_a_template(tiny_bundle: Path, tmp_path: Path) -> None:
    line = {"messages": [{"role": "user", "content": SUM}], "answer": "#### 7", "kind": "math"}
    done = lopa_export("bench", "quality", tiny_bundle, write_lines(tmp_path / "set.jsonl", [line]))
    assert done.returncode == 2
    assert "no chat template" in done.stderr
