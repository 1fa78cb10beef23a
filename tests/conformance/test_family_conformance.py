"""Our decoder on ONNX Runtime makes the choices of other families' published loops, step by step.

This tests a sample of every recorded file's prompts. test_recorded_variants.py tests all of them.
"""

import gzip
import json
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
from tests.conformance.recorded import Record, check_comparisons, open_test_device
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session

FILES = family_trace_files()


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
        ("official", {"gen_length": 63, "block_length": 8, "steps": 8}, "gen_length 63"),
        ("official", {"gen_length": 64, "block_length": 8, "steps": 9}, "steps 9"),
        ("official", {"gen_length": 64, "block_length": 8, "steps": 0}, "steps 0"),
        ("fast", {"gen_length": 63, "block_length": 8, "steps": 8, "threshold": 0.9}, "gen_length 63"),
        ("fast", {"gen_length": 64, "block_length": 8, "steps": 8, "function": "generate_x"}, "generate_x"),
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


Change = Callable[[dict[str, Any], dict[str, Any]], object]
CUT: tuple[tuple[str, Change, str], ...] = (
    ("llada/official_b32_n1", lambda _, trace: trace["steps"].clear(), "recorded 0"),
    ("llada/fast_nocache_b32_t09", lambda _, trace: trace["steps"].pop(), "recorded"),
    ("llada/fast_nocache_b32_t09", lambda _, trace: trace.update(generated_ids=[9, 9]), "answer"),
    ("llada/official_b16_n2", lambda _, trace: trace["generated_ids"].__setitem__(-1, 9), "answer"),
    ("llada/d2f_b32", lambda _, trace: trace["generated_ids"].append(9), "answer"),
    ("sdar/b8_dynamic_t085", lambda _, trace: trace["generated_ids"].__setitem__(0, 9), "answer"),
    ("fast_dllm_v2/batch_s8_t09", lambda _, trace: trace["generated_ids"].__setitem__(0, 9), "answer"),
    ("fast_dllm_v2/generate_s8_t09", lambda _, trace: trace["generated_ids"].__setitem__(-1, 9), "answer"),
    ("llada/fast_prefix_b8_t005", lambda _, trace: trace["steps"][1]["state"].extend([2] * 40), "at most 64"),
    ("llada/fast_dual_b32_t09", lambda _, trace: (trace["steps"].clear(), trace.update(error="Index")), "without a"),
    ("fast_dllm_v2/batch_s8_t09", lambda _, t: (t["steps"].pop(), t.update(error="TypeError")), "ours has"),
    ("llada/official_b32_n1", lambda _, t: (t["steps"].pop(), t.update(error="IndexError")), "ours has"),
)


def _changed(folder: Path, name: str, change: Change) -> Path:
    """Return a copy of a file's first trace, changed by `change(header, trace)`."""
    path = next(path for path in FILES if str(path).endswith(f"{name.replace('/', '/traces/')}.jsonl.gz"))
    header, traces = read_family_traces(path)
    header, trace = json.loads(json.dumps([header, traces[0]]))
    change(header, trace)
    with gzip.open(folder / path.name, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, trace))
    return folder / path.name


@pytest.mark.parametrize(("name", "change", "text"), CUT)
def test_a_changed_end_is_a_mismatch(
    name: str, change: Change, text: str, family_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    bundle = Bundle.open(family_bundle(name.split("/")[0]))
    session = open_session(bundle, "cpu", threads=1)
    [found] = family_comparisons(_changed(tmp_path, name, change), session, bundle.manifest)
    session.close()
    assert found.mismatch is not None
    assert text in found.mismatch


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda header, _: header.update(mask=7), "the mask token 7"),
        (lambda header, _: header.update(eos=7), "the end-of-text token 7"),
    ],
)
def test_tokens_of_another_model_are_refused(
    change: Change, text: str, family_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    bundle = Bundle.open(family_bundle("llada"))
    session = open_session(bundle, "cpu", threads=1)
    with pytest.raises(BadInputError, match=text):
        family_comparisons(_changed(tmp_path, "llada/official_b32_n1", change), session, bundle.manifest)
    session.close()
