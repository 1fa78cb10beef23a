"""examples/plain_lopa.py reproduces recorded traces round by round, and agrees with the product on random options."""

import gzip
import importlib.util
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.recorded import trace_files

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIDENCE_TOLERANCE = 2e-4
CONFIDENCES = {"default": "probability", "margin": "margin", "neg_entropy": "neg_entropy"}


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


plain = module("plain_lopa")


@pytest.fixture(scope="module")
def forward(tiny_bundle: Path) -> Any:
    return module("run_plain_lopa").forward_of_bundle(tiny_bundle)


def differences(recorded: dict[str, Any], found: Any) -> Iterator[str]:
    """Yield differences from the recorded round, in which the anchor may occur twice (docs/reference/algorithm.md,
    quirk 2)."""
    branches = recorded["branches"][: -1 if recorded.get("dup_base") else None]
    if [zlib.crc32(each.tokens.astype("<i4").tobytes()) for each in found.branches] != [b["x_crc"] for b in branches]:
        yield "tokens"
    if plain.window(found.branches[0]) != (recorded["input_start"], recorded["update_kvcache_len"]):
        yield "window"
    blocks = [
        [each.start, each.end, each.masks, each.state, each.fully_activated] for each in found.branches[-1].blocks
    ]
    if blocks != [each[1:] for each in recorded["blocks"]]:
        yield "blocks"
    for ours, theirs in zip(found.confidences, branches, strict=False):
        if "conf" in theirs and abs(ours - theirs["conf"]) > CONFIDENCE_TOLERANCE:
            yield f"confidence {ours}, recorded {theirs['conf']}"
    if not recorded.get("dup_base") and found.winner != recorded.get("winner", 0):
        yield "winner"
    if sorted(found.unmasked.items()) != [(position, token) for position, token in recorded["fills"]]:
        yield "unmasked tokens"


@pytest.mark.parametrize("path", trace_files()[::3], ids=lambda path: path.name.split(".")[0])
def test_recorded_traces_are_reproduced(path: Path, forward: Any) -> None:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        header, *traces = map(json.loads, lines)
    params = header["params"]
    options = plain.Options(
        header["mask_token_id"],
        header["eos_token_id"],
        lookaheads=params["branching_factor"] * (params["use_uncertainty_logic"] and params["branching_factor"] > 1),
        confidence=CONFIDENCES[params["sampling_strategy"]],
        full_attention=params["use_full_attention"],
        **{name: params[name] for name in plain.Options.__dataclass_fields__ if name in params},
    )
    trace = traces[0]
    rounds, found = plain.lopa(forward, np.array(trace["prompt_ids"]), options), None
    for recorded in trace["steps"]:
        found = next(rounds)
        assert not list(differences(recorded, found)), f"step {recorded['step']}"
    assert next(rounds, None) is None
    assert found.next_branches[-1].tokens[len(trace["prompt_ids"]) :].tolist() == trace["generated_ids"]


def test_it_runs_as_an_example(tiny_bundle: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "run_plain_lopa.py", tiny_bundle], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "round 1: 1 branches, the anchor wins at -1.097, 1 tokens unmasked, 31 masked"
    assert lines[-1] == "#### 54"


def test_it_is_short_and_needs_only_numpy() -> None:
    text = (EXAMPLES / "plain_lopa.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    program = "import sys, plain_lopa; print(sorted(set(sys.modules) & {'lopa', 'onnxruntime', 'tokenizers', 'torch'}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=EXAMPLES, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
