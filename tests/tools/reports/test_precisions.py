"""Comparison of number formats: recorded tokens of a bundle with itself and in int4, and paired scores."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.recorded import trace_files
from tools.reports import precisions


def test_best_tokens(export_tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisions, "trace_files", lambda: [trace_files()[0], trace_files()[7]])
    bundles = export_tiny(with_logits=False), export_tiny(with_logits=False, quantize="int4")
    found = precisions.agreement(bundles, 2)
    assert found.title.endswith("tokens of 4 recorded decodes")
    (exact, device, same), (_, _, other) = found.rows
    assert (exact, device, same) == (bundles[0].name, "cpu", "100.00% (100.00% to 100.00%)")
    assert 85 < float(other.split("%")[0]) < 99


def test_scores_of_the_same_questions(tmp_path: Path) -> None:
    """A question without all outcomes does not count."""
    paths = []
    for name, right in (("one", {"a", "b", "d"}), ("two", {"a"})):
        lines = [{}] + [
            {"prompt": prompt, "config": config, "outcome": {"score": float(prompt in right)}}
            for prompt in "abcd"
            for config in ("d2f", "lopa")
            if (prompt, config) != ("d", "lopa")
        ]
        paths.append(tmp_path / name / "quality.outcomes.jsonl")
        paths[-1].parent.mkdir()
        paths[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = precisions.scores(tuple(paths))
    assert found.title == "3 questions"
    assert found.rows[0] == ("one", "66.7", "66.7", "66.7", "+0.0 (+0.0 to +0.0)")
    assert found.rows[1] == ("two", "33.3", "33.3", "33.3", "-33.3 (-100.0 to +0.0)")
