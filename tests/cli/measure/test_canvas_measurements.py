"""Measurements of a bundle with canvases: its own strategy is measured, and what has no form of it is refused first."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cli.command import lopa_export
from tests.conftest import CANVAS

from lopa.bench.forward.cost_measurement import random_prefix_rows
from lopa.cli.start.fastest_device import lines_of_fastest
from lopa.runtime.bundle import Bundle
from lopa.tiny import EVAL


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (("bench", "costs"), ()),
        (("bench", "speed"), ("--checkpoint", CANVAS)),
        (("tune",), ("--eval", EVAL, "--save")),
        (("tune",), ("--eval", EVAL, "--strategies", "canvas")),
        (("tune",), ("--reference-text", EVAL)),
    ],
)
def test_measurements_of_masked_positions_are_refused(
    canvas_bundle: Path, command: tuple[str, ...], arguments: tuple[object, ...]
) -> None:
    done = lopa_export(*command, canvas_bundle, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search("^error: .* a bundle with canvases(.|\n)* --strategies canvas --sweep entropy_bound=", done.stderr)


@pytest.mark.parametrize("strategies", [(), ("--strategies", "recommended"), ("--strategies", "all")])
def test_each_set_of_strategies_is_canvas(canvas_bundle: Path, tmp_path: Path, strategies: tuple[str, ...]) -> None:
    prompts = tmp_path / "eval.jsonl"
    prompts.write_text(json.dumps({"prompt": "1 + 1", "answer": "#### 2", "kind": "math", "max_new_tokens": 16}))
    done = lopa_export("bench", "quality", canvas_bundle, prompts, *strategies, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["config"] for row in json.loads((tmp_path / "quality.json").read_bytes())["rows"]] == ["canvas"]


@pytest.mark.parametrize(
    ("bundle", "strategies", "wrong"), [("canvas_bundle", "canvas,d2f", "d2f"), ("tiny_bundle", "d2f,canvas", "canvas")]
)
def test_strategies_of_other_models_are_refused_before_decoding(
    bundle: str, strategies: str, wrong: str, request: pytest.FixtureRequest
) -> None:
    done = lopa_export("bench", "quality", request.getfixturevalue(bundle), EVAL, "--strategies", strategies)
    assert (done.returncode, done.stderr.startswith(f"error: strategy {wrong!r}")) == (2, True), done.stderr


def test_a_cold_start_denoises_once(canvas_bundle: Path) -> None:
    done = lopa_export("bench", "cold", canvas_bundle, "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert "| first forward " in done.stdout


def test_devices_that_are_timed_agree(canvas_bundle: Path) -> None:
    _, line, verdict = lines_of_fastest(Bundle.open(canvas_bundle), ("cpu", "numpy"))
    assert re.search("^numpy: .* 100% of best tokens as on cpu, log-probabilities off by [0-9.]+e-0[6-9]", line)
    assert "a forward of 16 tokens after 64 cached ones" in verdict


def test_random_rows_end_in_zeros_as_caches_do(canvas_bundle: Path) -> None:
    manifest = Bundle.open(canvas_bundle).manifest
    canvas = msgspec.structs.replace(manifest.dimensions.canvas, full_kv_heads=2)
    wide = msgspec.structs.replace(manifest, dimensions=msgspec.structs.replace(manifest.dimensions, canvas=canvas))
    rows = random_prefix_rows(wide, 8, np.random.default_rng(0)).layers
    assert {each.shape for each in rows} == {(1, 8, 64)}
    assert [np.count_nonzero(each) // 8 for each in rows] == [32] * 4 + [64] * 2
