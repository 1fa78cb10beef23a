"""tools/measure_strategies.py: sittings go on where the last one ended, and report what one run would."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tools.measure_strategies import decoded_from_lines, main, scored_items, whole_lines

from lopa.bench.quality.decodes import measured_outcomes
from lopa.bench.quality.measure import rows_from_outcomes
from lopa.bench.quality.variants import variants_from_text
from lopa.runtime.decoder import Decoder

STRATEGIES = "d2f,factor"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lopa.bench.quality.decodes.MAX_NEW_TOKENS", 64)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def decode(bundle: Path, outcomes: Path, *words: object) -> Result:
    return run("decode", bundle, outcomes, "--strategies", STRATEGIES, *words)


def test_sittings_and_their_report(tiny_bundle: Path, tmp_path: Path) -> None:
    path, variants = tmp_path / "outcomes.jsonl", variants_from_text(STRATEGIES)
    for expected in (1, 2):
        done = decode(tiny_bundle, path, "--limit", 3, "--seconds", 0)
        assert done.exit_code == 0, done.output
        _, found = decoded_from_lines(whole_lines(path))
        assert set(found) == {(i, variant.name) for i in range(expected) for variant in variants}
    with path.open("ab") as file:
        file.write(b'{"type":"Decoded","prompt":2,')  # the machine stopped
    assert decode(tiny_bundle, path, "--limit", 3, "--untimed").exit_code == 0
    done = run("report", path, tmp_path / "out", "--strategies", STRATEGIES, "--plot", "d2f")
    assert done.exit_code == 0, done.output
    assert "3 prompts, 2 of them timed" in done.output
    report = json.loads((tmp_path / "out" / "strategies.json").read_text())
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        items = scored_items()[:3]
        rows = rows_from_outcomes(items, measured_outcomes(decoder, items, variants))
    assert [row["config"] for row in report["rows"]] == [row.config for row in rows]
    for told, row in zip(report["rows"], rows, strict=True):
        assert told["default"]["steps"] == row.default.steps
        assert told["default"]["score"]["correct"] == row.default.score.correct  # type: ignore[union-attr]
        assert told["default"]["tokens_per_forward"] == row.default.tokens_per_forward
    _, found = decoded_from_lines(whole_lines(path))
    timed = [found[i, "d2f 0.9"].outcome for i in range(2)]
    (own,) = (row["default"] for row in report["rows"] if row["config"] == "d2f 0.9")
    speed = sum(each.tokens for each in timed) / sum(each.seconds for each in timed)
    assert own["tokens_per_second"] == pytest.approx(speed)
    plots = [(tmp_path / "out" / f"{name}.png").read_bytes() for name in ("strategies", "strategies-per-second")]
    assert all(plot.startswith(b"\x89PNG") for plot in plots)
    assert plots[0] != plots[1]


def test_what_is_complete_is_left_alone(tiny_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    assert decode(tiny_bundle, path, "--limit", 1, "--first", 4).exit_code == 0
    before = path.read_bytes()
    assert decode(tiny_bundle, path, "--limit", 1, "--first", 4).exit_code == 0
    assert path.read_bytes() == before
    assert {i for i, _ in decoded_from_lines(whole_lines(path))[1]} == {4}


def test_outcomes_of_another_bundle_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    decode(tiny_bundle, path, "--limit", 1)
    first, *rest = path.read_text().splitlines(keepends=True)
    other = json.loads(first)
    other["run"]["bundle_sha256"] = "0" * 64
    path.write_text(json.dumps(other) + "\n" + "".join(rest))
    done = decode(tiny_bundle, path, "--limit", 2)
    assert done.exit_code == 2
    assert "another bundle" in done.output


def test_nothing_timed_is_said(tiny_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    decode(tiny_bundle, path, "--limit", 1, "--untimed")
    done = run("report", path, tmp_path / "out", "--strategies", STRATEGIES)
    assert done.exit_code == 2
    assert "none of them timed" in done.output
    assert not (tmp_path / "out").exists()
