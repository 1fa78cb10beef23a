"""Our decoder on ONNX Runtime reproduces every recorded trace of the published implementation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.recorded import (
    Record,
    changed_copy,
    check_comparisons,
    comparisons_of_file,
    open_test_device,
    read_traces,
    trace_files,
)

from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import open_session


@pytest.mark.parametrize("limit", [4, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", trace_files(), ids=lambda path: path.name.split(".")[0])
def test_published_traces_are_reproduced(
    path: Path, limit: int | None, tiny_bundle: Path, record_property: Record
) -> None:
    bundle = Bundle.open(tiny_bundle)
    session = open_test_device(bundle)
    found = comparisons_of_file(path, session, bundle.manifest, limit=limit)
    session.close()
    check_comparisons(found, record_property)


def test_every_recorded_trace_exists() -> None:
    assert len(trace_files()) == 31
    assert sum(len(read_traces(path)[1]) for path in trace_files()) == 1072


LOPA, D2F = "lopa_bf2_bs16_full", "d2f_bs16_full.jsonl"


Change = Callable[[dict[str, Any], dict[str, Any]], object]
CHANGES: tuple[tuple[str, Change, str], ...] = (
    (LOPA, lambda _, trace: trace["steps"].pop(), "recorded steps and forward_rounds"),
    (D2F, lambda _, trace: trace.update(steps=trace["steps"][:-1], forward_rounds=len(trace["steps"]) - 1), "steps, r"),
    (D2F, lambda _, trace: trace["steps"][1]["fills"].pop(), "fills"),
    (LOPA, lambda _, trace: trace["steps"][1].update(winner=1 - trace["steps"][1]["winner"]), "winner"),
    (LOPA, lambda _, trace: trace["steps"][1]["branches"][0].update(conf=0.5), "confidence of branch 0"),
    (LOPA, lambda _, trace: trace["steps"][0]["spawn"]["lookaheads"].clear(), "lookaheads"),
)


@pytest.mark.parametrize(("name", "change", "text"), CHANGES)
def test_a_changed_trace_is_a_mismatch(name: str, change: Change, text: str, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    session = open_session(bundle, "numpy")
    path = next(path for path in trace_files() if path.name.startswith(name))
    [found] = comparisons_of_file(changed_copy(path, tmp_path, change), session, bundle.manifest)
    session.close()
    assert found.mismatch is not None
    assert text in found.mismatch
