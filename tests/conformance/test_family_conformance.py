"""Our decoder on ONNX Runtime makes the choices of other families' published loops, step by step.

This tests a sample of every recorded file's prompts. test_recorded_variants.py tests all of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.family_traces import (
    FAMILIES,
    MIXTURES,
    checkpoint_of,
    config_of,
    family_comparisons,
    family_trace_files,
    read_family_traces,
    sampled,
)
from tests.conformance.recorded import Record, changed_copy, check_comparisons, open_test_device
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import open_session

FILES = [*family_trace_files(FAMILIES), *family_trace_files(MIXTURES)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{checkpoint_of(path).name}-{path.name.split('.')[0]}")
def test_published_loops_are_reproduced(
    path: Path, family_bundle: Callable[..., Path], record_property: Record
) -> None:
    header, traces = read_family_traces(path)
    options = {"with_logits": True} if params_of(config_of(header)).draws_from_logits else {}
    bundle = Bundle.open(family_bundle(checkpoint_of(path).name, **options))
    numbers = sampled(traces)
    session = open_test_device(bundle)
    found = family_comparisons(path, session, bundle.manifest, only=numbers)
    session.close()
    assert len(found) == len(numbers) >= 6
    check_comparisons(found, record_property)


def test_every_recording_exists() -> None:
    assert len(FILES) == 22 + 17
    assert sum(len(read_family_traces(path)[1]) for path in FILES) == 506 + 374


Change = Callable[[dict[str, Any], dict[str, Any]], object]
CUT: tuple[tuple[str, Change, str], ...] = (
    ("sdar/b8_dynamic_t085", lambda _, trace: trace["steps"][1]["fills"].pop(), "fills"),
    ("llada/fast_nocache_b32_t09", lambda _, trace: trace["steps"].pop(), "recorded"),
    ("llada/d2f_b32", lambda _, trace: trace["generated_ids"].append(9), "answer"),
    ("fast_dllm_v2/batch_s8_t09", lambda _, t: (t["steps"].pop(), t.update(error="TypeError")), "ours has"),
)


@pytest.mark.parametrize(("name", "change", "text"), CUT)
def test_a_changed_end_is_a_mismatch(
    name: str, change: Change, text: str, family_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    bundle = Bundle.open(family_bundle(name.split("/")[0]))
    session = open_session(bundle, "cpu", threads=1)
    path = next(path for path in FILES if str(path).endswith(f"{name.replace('/', '/traces/')}.jsonl.gz"))
    [found] = family_comparisons(changed_copy(path, tmp_path, change), session, bundle.manifest)
    session.close()
    assert found.mismatch is not None
    assert text in found.mismatch
