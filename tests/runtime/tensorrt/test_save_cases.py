"""verify --device tensorrt:N --save-cases saves the forwards in which an engine is wrong, with correct outputs."""

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from polygraphy.comparator import IterationResult
from polygraphy.json import load_json
from tests.export.replay.replayed import replayed
from tests.runtime.sequential import sequential
from tests.runtime.tensorrt.machines import GATE_BUCKETS, built

from lopa.cli.main import main
from lopa.export.replay.compare import matching_outputs
from lopa.export.replay.recorded_session import RecordedSession
from lopa.export.replay.saved_cases import FailedForwards
from lopa.export.verify.cases import SHAPES, random_windows
from lopa.export.verify.token_gate import gate_tolerance
from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import open_session

WRONG = 2
"""Profile of the last shape bucket: [2, 3, 160], prefix 256."""


@pytest.fixture(autouse=True)
def _limit_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lopa.cli.make.verify._GATE_PROMPTS", 1)
    monkeypatch.setattr("lopa.cli.make.verify._GATE_TOKENS", 8)
    monkeypatch.setattr("lopa.export.verify.cases.SHAPES", SHAPES[8:9])


def verify(path: Path, cases: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(path), "--device", "tensorrt:0", "--save-cases", str(cases)])
    return int(caught.value.code or 0), capsys.readouterr().out


@pytest.fixture
def path(tiny_bundle: Path, tmp_path: Path, trt: ModuleType) -> Path:
    """Return a private copy of a bundle with an unverified engine."""
    copy = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    built(copy, trt, GATE_BUCKETS)
    return copy


def flip(profile: int, name: str, array: Any) -> Any:
    return np.flip(array, axis=-1).copy() if (profile, name) == (WRONG, "topk_ids") else array


def test_failed_forwards_of_a_wrong_engine_are_saved(
    path: Path, tmp_path: Path, trt: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    trt.engines.corrupt = flip
    cases = tmp_path / "cases"
    code, output = verify(path, cases, capsys)
    assert code == 1
    found = re.search(r"/cases/failed: (\d) of \1 forwards that differ, with the results of cpu$", output, re.MULTILINE)
    assert found is not None
    count = int(found[1])
    assert count > 1  # forwards of the decode, and the one in the bucket's full shape
    done = replayed(path / "model.onnx", cases / "failed")
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"Passed: {count}/{count} iterations" in done.stdout

    saved = load_json(str(cases / "failed" / "inputs.json"))
    (inputs,) = (each for each in saved if each["input_ids"].shape == (2, 3, 160))
    assert inputs["prefix_mask"].sum(axis=1).tolist() == [255, 255]
    assert all(np.abs(rows).max() > 0.1 for name, rows in inputs.items() if name.startswith("past_"))
    ((device, answers),) = load_json(str(cases / "failed" / "outputs.json")).items()
    rule = json.loads((cases / "failed" / "rule.json").read_text())
    assert rule == {"reference": device, "tolerance": 1e-4, "by_rms": False, "margin": 0.01}
    assert len(answers) == count
    for right in answers:  # the engine's outputs fail
        wrong = IterationResult({name: flip(WRONG, name, array) for name, array in right.items()}, runner_name="trt")
        assert [name for name, ok in matching_outputs(right, wrong, rule).items() if not ok] == ["topk_ids"]


def test_number_of_saved_forwards_is_limited(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lopa.export.replay.saved_cases.MAX_FORWARDS", 2)
    bundle = Bundle.open(tiny_bundle)
    rng = np.random.default_rng(0)
    failed = FailedForwards()
    with closing(
        RecordedSession(open_session(bundle, "cpu", threads=1), cache_shape_from_manifest(bundle.manifest))
    ) as session:
        for width in (3, 4, 5):
            sequential(session).forward(random_windows((1,), (1, width, 1), 500, rng, start=0))
            failed.add_last(session)
    assert failed.save(tmp_path / "failed", "cpu", gate_tolerance(bundle.manifest, "graph")) == 2
    assert failed.count == 3
    inputs = load_json(str(tmp_path / "failed" / "inputs.json"))
    assert [each["input_ids"].shape for each in inputs] == [(1, 1, 3), (1, 1, 4)]
