"""Decodes of canvases equal transformers' generate step by step: tokens drawn, accepted, renoised, and the best ones.

tools/diffusion_gemma trained the networks and recorded the decodes (tests/reference/diffusion_gemma/README.md).
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.canvas_checkpoints import CHECKPOINTS, FOLDER, canvas_model, numpy_session, with_stops

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.decoding.canvas_loop import CanvasLoop
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.requests.running_loop import RequestCache, RunningLoop

FILES = [path.relative_to(FOLDER) for path in sorted(FOLDER.glob("*/traces/*.jsonl.gz"))]
OWN = (
    *("entropy_bound", "stability_threshold", "confidence_threshold", "t_min", "t_max"),
    "max_denoising_steps",
)
NEAR_TIE = 1e-6
"""Margin of a decision in float32 below which another order of sums may decide otherwise."""


@pytest.mark.parametrize("limit", [3, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[0]}-{path.name.partition('.')[0]}")
def test_every_step_equals_the_published_one(path: Path, limit: int | None) -> None:
    config, *traces = recorded(path)
    manifest = with_stops(canvas_model(path.parts[0])[0], config["stops"])
    session = numpy_session(path.parts[0], manifest)
    for trace in traces[:limit]:
        loop = loop_of(config, trace, manifest)
        running = RunningLoop(loop, RequestCache(session))
        found = replayed(running, trace)
        running.cache.release()
        if found is not None:
            assert trace["margin"] < NEAR_TIE, found
            continue
        answer = loop.answer
        assert answer.stop_reason is not None
        assert answer.generated.tolist() == trace["generated"]
        assert (answer.final - answer.pads) / loop.steps == pytest.approx(trace["tokens_per_forward"], abs=1e-5)


def loop_of(config: dict[str, Any], trace: dict[str, Any], manifest: Manifest) -> CanvasLoop:
    """Return the loop of a recorded decode."""
    options = GenerationConfig(
        max_new_tokens=config["canvases"] * manifest.decoding.block_size,
        seed=trace["seed"],
        reference=True,
        stop_at_eos=bool(config["stops"]),
        **{name: config[name] for name in OWN},
    )
    return CanvasLoop(resolve(options, own=manifest.decoding.options()), manifest, np.array(trace["prompt"]))


def recorded(path: Path) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress((FOLDER / path).read_bytes()).splitlines()]


def replayed(running: RunningLoop, trace: dict[str, Any]) -> str | None:
    """Return the first step that differs from the recorded one, or None."""
    for number, canvas in enumerate(trace["canvases"]):
        for place, recorded in enumerate(canvas["steps"]):
            packed_ids = running.loop.open_round(running.cache.positions).input_ids[-len(canvas["start"]) :]
            before = canvas["steps"][place - 1]["canvas"] if place else canvas["start"]
            step = running.step().canvas
            assert step is not None
            pairs = (
                (packed_ids.tolist(), before),
                (step.drawn.tolist(), recorded["drawn"]),
                (np.flatnonzero(step.accepted).tolist(), recorded["accepted"]),
                (step.best.tolist(), recorded["argmax"]),
                (step.renoised.tolist(), recorded["canvas"]),
            )
            if any(ours != theirs for ours, theirs in pairs):
                return f"canvas {number}, step {place} of seed {trace['seed']}: {pairs}"
    return None


def test_recordings_have_every_kind_of_step() -> None:
    """Networks that were not trained accept one token in every step, and no canvas ends before its last one."""
    accepted, ends, canvases = set(), set(), 0
    for path in FILES:
        config, *traces = recorded(path)
        for trace in traces:
            ends.add("text" if {*trace["generated"]} & {*config["stops"]} else "length")
            for canvas in trace["canvases"]:
                canvases += 1
                ends.add("stable" if canvas["stable"] else "steps")
                accepted |= {len(step["accepted"]) / len(canvas["start"]) for step in canvas["steps"]}
    assert ends == {"text", "length", "stable", "steps"}
    assert len(accepted) >= 16
    assert {1.0} < accepted
    assert canvases >= 100 * len(CHECKPOINTS)
