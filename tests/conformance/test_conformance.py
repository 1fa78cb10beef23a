"""Our decoder on ONNX Runtime reproduces every recorded trace of the published implementation."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.recorded import (
    Record,
    check_comparisons,
    comparisons_of_file,
    open_test_device,
    read_traces,
    trace_files,
)

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session


@pytest.mark.parametrize("path", trace_files(), ids=lambda path: path.name.split(".")[0])
def test_published_traces_are_reproduced(path: Path, tiny_bundle: Path, record_property: Record) -> None:
    bundle = Bundle.open(tiny_bundle)
    session = open_test_device(bundle)
    found = comparisons_of_file(path, session, bundle.manifest)
    session.close()
    check_comparisons(found, record_property)


def test_every_recorded_trace_exists() -> None:
    assert len(trace_files()) == 31
    assert sum(len(read_traces(path)[1]) for path in trace_files()) == 1072


def _changed(folder: Path, name: str, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Path:
    """Return a copy of a file's first trace, changed by `change(header, trace)`."""
    path = next(path for path in trace_files() if path.name.startswith(name))
    with gzip.open(path, "rt") as lines:
        header, trace = (json.loads(next(lines)) for _ in range(2))
    change(header, trace)
    with gzip.open(folder / path.name, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, trace))
    return folder / path.name


LOPA, D2F = "lopa_bf2_bs16_full", "d2f_bs16_full.jsonl"


Change = Callable[[dict[str, Any], dict[str, Any]], object]
COUNTS: tuple[tuple[Change, str], ...] = (
    (lambda _, trace: trace["steps"].clear(), "0 recorded steps and forward_rounds"),
    (lambda _, trace: trace["steps"].pop(), "recorded steps and forward_rounds"),
    (lambda _, trace: trace["steps"].extend(trace["steps"][-2:]), "recorded steps and forward_rounds"),
    (lambda _, trace: trace.update(steps=trace["steps"][:-1], forward_rounds=len(trace["steps"]) - 1), "steps, rec"),
    (lambda _, trace: trace["steps"][1].update(winner=1, dup_base=True), "two identical branches"),
)
CHOICES: tuple[tuple[Change, str], ...] = (
    (lambda _, trace: trace["steps"][1].update(winner=1 - trace["steps"][1]["winner"]), "winner"),
    (lambda _, trace: trace["steps"][1].update(winner=7), "winner"),
    (lambda _, trace: trace["steps"][1].update(winner_conf=0.5), "confidence of the winner"),
    (lambda _, trace: trace["steps"][1]["branches"][0].update(conf=0.5), "confidence of branch 0"),
    (lambda _, trace: trace["steps"][0]["spawn"]["lookaheads"].clear(), "lookaheads"),
)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [*((name, *each) for name in (LOPA, D2F) for each in COUNTS), *((LOPA, *e) for e in CHOICES)],
)
def test_a_changed_trace_is_a_mismatch(name: str, change: Change, text: str, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    session = open_session(bundle, "numpy")
    [found] = comparisons_of_file(_changed(tmp_path, name, change), session, bundle.manifest)
    session.close()
    assert found.mismatch is not None
    assert text in found.mismatch


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (LOPA, lambda _, trace: [b.pop("conf") for s in trace["steps"] for b in s["branches"]], "0 without conf"),
        (LOPA, lambda _, trace: trace["steps"][3].pop("spawn"), "without spawn"),
        (LOPA, lambda _, trace: trace["steps"][3]["spawn"].pop("lookaheads"), "without spawn.lookaheads"),
        (LOPA, lambda _, trace: trace["steps"][3].pop("winner"), "without winner"),
        (D2F, lambda _, trace: trace["steps"][3].pop("winner"), "without winner"),
        (D2F, lambda _, trace: trace["steps"][3].pop("thr_margin"), "without thr_margin"),
        (D2F, lambda _, trace: trace.pop("generated_ids"), "without generated_ids"),
        (LOPA, lambda header, _: header["params"].update(temperature=1.0), "temperature 1.0"),
        (D2F, lambda header, _: header["params"].update(alg="entropy"), "alg 'entropy'"),
        (LOPA, lambda header, _: header["params"].update(top_p=0.5), "top_p 0.5"),
        (LOPA, lambda header, _: header["params"].update(sampling_strategy="x"), "sampling_strategy 'x'"),
        (
            LOPA,
            lambda header, _: header["params"].update(verification_force_base_winner=True),
            "force_base_winner True",
        ),
        (LOPA, lambda header, _: header.update(mask_token_id=7), "the mask token 7"),
        (D2F, lambda header, _: header.update(eos_token_id=7), "the end-of-text token 7"),
        (D2F, lambda header, _: header["params"].pop("max_new_tokens"), "without the option max_new_tokens"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    name: str, change: Change, text: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    bundle = Bundle.open(tiny_bundle)
    session = open_session(bundle, "numpy")
    with pytest.raises(BadInputError, match=text):
        comparisons_of_file(_changed(tmp_path, name, change), session, bundle.manifest)
    session.close()
