"""Real servers beside the simulation of them: whole answers, counted as the simulation counts."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.bench.fleet.test_scenario import COSTS
from tools.fleet.load import main

from lopa.bench.fleet.decodes import text_of_decodes
from lopa.bench.fleet.recording import recorded_decodes
from lopa.runtime.decoder import Decoder

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
pytestmark = pytest.mark.skipif(CORES < 1, reason="cores cannot be chosen here")


def test_a_server_answers_what_the_simulation_asked(tiny_bundle: Path, tmp_path: Path) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        decodes = recorded_decodes(decoder, (1,), limit=1)
    (tmp_path / "decodes.json").write_bytes(text_of_decodes(decodes))
    costs = msgspec.structs.replace(COSTS, weights_sha256=decodes.weights_sha256)
    (tmp_path / "costs.json").write_bytes(msgspec.json.encode(costs))
    scenario = {
        "schema": 1,
        "decodes": "decodes.json",
        "costs": {"kind": "measured", "table": "costs.json"},
        "loads": [5],
        "branches": [1],
        "replicas": 1,
        "slots": 4,
        "queue": 20,
        "seconds": 2,
        "seed": 2,
    }
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario))
    done = CliRunner().invoke(main, [str(path), str(tiny_bundle), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    (load,) = json.loads((tmp_path / "out" / "fleet.json").read_bytes())["loads"]
    found, said = load["measured"], load["simulated"]
    assert found["load"] == said["load"] == 5
    assert 0 < found["answers"] <= said["arrived"]
    mean = sum(decodes.of(prompt, 1).tokens for prompt in (0, 1)) / 2
    assert found["tokens_per_second"] / found["answers_per_second"] == pytest.approx(mean, rel=0.5)
    assert 0 < found["whole"]["p50"] <= found["whole"]["p99"] < 2
    assert found["refused_share"] == 0
    assert found["host_seconds_a_step"] > 0
    assert "1 server(s)" in (tmp_path / "out" / "fleet.md").read_text()
    for fields, said_of in (
        ({"replicas": 4096}, "replicas"),
        ({"failures": {"mean_seconds_between": 1, "repair_seconds": 1, "again": True}}, "failures"),
        ({"branches": ["load"]}, "branches"),
    ):
        path.write_text(json.dumps({**scenario, **fields}))
        refused = CliRunner().invoke(main, [str(path), str(tiny_bundle)])
        assert refused.exit_code == 2
        assert said_of in refused.output
