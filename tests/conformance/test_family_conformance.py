"""Our decoder on ONNX Runtime makes the choices of other families' published loops, step by step.

This tests a sample of every recorded file's prompts. tools/reports/conformance.py runs all of them, and other
recordings.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.family_traces import (
    checkpoint_of,
    config_of,
    family_comparisons,
    family_trace_files,
    read_family_traces,
    sampled,
)
from tests.plans import plan_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session

FILES = family_trace_files()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{checkpoint_of(path).name}-{path.name.split('.')[0]}")
def test_published_loops_are_reproduced(
    path: Path, family_bundle: Callable[..., Path], record_property: Callable[[str, object], None]
) -> None:
    header, traces = read_family_traces(path)
    options = {"with_logits": True} if plan_of(config_of(header)).draws_from_logits else {}
    bundle = Bundle.open(family_bundle(checkpoint_of(path).name, **options))
    numbers = sampled(traces)
    session = open_session(bundle, "cpu", threads=1)
    found = family_comparisons(path, session, bundle.manifest, only=numbers)
    session.close()
    assert len(found) == len(numbers) >= 6
    mismatches = [each.mismatch for each in found if each.mismatch is not None]
    assert not mismatches, "\n".join(mismatches)
    assert sum(each.whole for each in found) >= len(found) - 1, "too many differences at near-ties"
    record_property("steps", sum(each.steps for each in found))


def test_every_recording_exists() -> None:
    assert len(FILES) == 22
    assert sum(len(read_family_traces(path)[1]) for path in FILES) == 506


def test_the_sample_covers_the_special_cases() -> None:
    """The sample has prompts of exactly one block, of one token, and some that broke off or were overwritten."""
    found: set[str] = set()
    for path in FILES:
        traces = read_family_traces(path)[1]
        for trace in traces:
            if trace["i"] in sampled(traces):
                found |= {f"length {len(trace['prompt_ids'])}"} | ({"error"} & trace.keys())
                found |= {name for step in trace["steps"] for name in step.keys() & {"prompt_changed", "proposal"}}
                found |= {"nothing unmasked"} if any(not step["fills"] for step in trace["steps"]) else set()
    wanted = {f"length {length}" for length in (1, 31, 32, 33, 64, 65, 96)}
    assert found >= wanted | {"error", "prompt_changed", "proposal", "nothing unmasked"}


@pytest.mark.parametrize(
    ("loop", "params", "named"),
    [
        ("official", {"gen_length": 8, "block_length": 8, "steps": 8, "cfg_scale": 1.5}, "'official' with cfg_scale"),
        ("beam", {}, "'beam'"),
    ],
)
def test_an_unknown_recording_is_rejected(loop: str, params: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInputError, match=named):
        config_of({"loop": loop, "params": params, "mask": 2, "eos": 0})


def test_a_difference_is_detected(family_bundle: Callable[..., Path]) -> None:
    """The comparison detects another rule than the recorded one, and an answer that is too short."""
    path = next(path for path in FILES if path.name.startswith("b8_dynamic_t085"))
    bundle = Bundle.open(family_bundle("sdar"))
    session = open_session(bundle, "numpy")
    [other] = family_comparisons(path, session, bundle.manifest, limit=1, skip_threshold=0.1)
    assert other.mismatch is not None
    assert "fills" in other.mismatch
    [cut] = family_comparisons(path, session, bundle.manifest, limit=1, max_new_tokens=8)
    assert cut.mismatch is not None
    assert "unmasking steps, recorded" in cut.mismatch
    session.close()
