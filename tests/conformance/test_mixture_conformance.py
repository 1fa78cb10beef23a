"""Our decoder makes the choices of the published loops of mixtures of experts, step by step: LLaDA2.0's, LLaDA2.1's
with edits, SDAR's and LLaDA's.

tests/reference/moe/README.md describes the recordings.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.family_traces import (
    MIXTURES,
    checkpoint_of,
    config_of,
    family_comparisons,
    family_trace_files,
    near_ties,
    read_family_traces,
    sampled,
)
from tests.conformance.recorded import DEVICE, Record, check_comparisons

from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import Session, open_session

FILES = family_trace_files(MIXTURES)
EDITS = "v21_b16_t08_e02_post4_early_stop"
"""Recording with edits, a limit of 4 and an early stop."""


def opened(path: Path, family_bundle: Callable[..., Path], device: str = "cpu") -> tuple[Bundle, Session]:
    bundle = Bundle.open(family_bundle(checkpoint_of(path).name, with_logits=True))
    return bundle, open_session(bundle, device, threads=1)


def file_of(name: str) -> Path:
    return next(path for path in FILES if path.name.startswith(name))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{checkpoint_of(path).name}-{path.name.split('.')[0]}")
def test_published_loops_are_reproduced(
    path: Path, family_bundle: Callable[..., Path], record_property: Record
) -> None:
    bundle, session = opened(path, family_bundle, DEVICE.format(0))
    numbers = sampled(read_family_traces(path)[1])
    found = family_comparisons(path, session, bundle.manifest, only=numbers)
    session.close()
    assert len(found) == len(numbers) >= 6
    check_comparisons(found, record_property)


def test_every_recording_exists() -> None:
    assert len(FILES) == 17
    assert sum(len(read_family_traces(path)[1]) for path in FILES) == 374


def test_the_recordings_cover_the_special_cases() -> None:
    """They have edits beside unmasking, blocks left at the limit, prompts with an end of text, and near-ties of
    routers.
    """
    found = Counter[str]()
    for path in FILES:
        header, traces = read_family_traces(path)
        for trace in traces:
            steps = trace["steps"]
            found["edit and fill"] += sum(bool(step.get("edits") and step["fills"]) for step in steps)
            found["stable"] += sum(step["rule"] == "stable" for step in steps)
            limit = header["params"].get("max_post_steps")
            found["limit"] += sum(step.get("post") == limit and step["rule"] == "edit" for step in steps)
            found["no answer"] += header["loop"] == "llada2.0_generate" and not trace["generated_ids"]
            found["prompt changed"] += any("prompt_changed" in step for step in steps)
            found["routing"] += sum("route" in near_ties(step["margins"]) for step in steps)
    assert min(found.values()) > 0, found
    assert len(found) == 6


def test_finished_blocks_are_committed_once(family_bundle: Callable[..., Path]) -> None:
    """Every row is committed once, with the token that it keeps, also behind blocks that reached the limit."""
    import numpy as np
    from tests.lone_decode import LoneDecode
    from tests.params import params_of

    path = file_of(EDITS)
    bundle, session = opened(path, family_bundle, "numpy")
    header, traces = read_family_traces(path)
    at_limit = 0
    for trace in traces[:8]:
        config = config_of(header, eos_early_stop=False)
        decoding = LoneDecode(session, np.array(trace["prompt_ids"]), params_of(config), bundle.manifest)
        rows: list[int] = []
        while decoding.stop_reason is None:
            packed = decoding.step().rows
            rows += packed.input_ids[: packed.commit].tolist()
        final = decoding.anchor.tokens[: len(rows)].tolist()
        assert rows == final
        assert len(rows) == decoding.anchor.blocks[-1].start
        at_limit += sum(block.edit_rounds == 4 for block in decoding.anchor.blocks)
        decoding.release()
    session.close()
    assert at_limit > 0


@pytest.mark.parametrize(
    ("name", "changed", "wrong"),
    [
        (EDITS, {"editing_limit": 3}, "fills"),
        (EDITS, {"editing_threshold": 0.9}, "edits"),
        ("v21_b8_t05_e00", {"editing_threshold": 0.5}, "edits"),
        ("v20_b16_steps5", {"block_steps": 16}, "fills"),
        ("v20_b16_t09_early_stop", {"eos_early_stop": False}, "steps, recorded"),
        ("v20_b16_t09", {"max_new_tokens": 32}, "answer|steps, recorded"),
    ],
)
def test_another_rule_is_detected(
    name: str, changed: dict[str, Any], wrong: str, family_bundle: Callable[..., Path]
) -> None:
    bundle, session = opened(file_of(name), family_bundle)
    found = family_comparisons(file_of(name), session, bundle.manifest, **changed)
    session.close()
    mismatches = [each.mismatch for each in found if each.mismatch is not None]
    assert any(each in "\n".join(mismatches) for each in wrong.split("|")), mismatches
