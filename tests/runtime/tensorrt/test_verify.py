"""lopa-export verify --device tensorrt:N: only engines with correct tokens may decode; wrong forwards are saved."""

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from lopa.export.replay.compare import matching_outputs
from lopa.export.replay.recorded_session import RecordedSession
from lopa.export.replay.saved_cases import FailedForwards
from polygraphy.comparator import IterationResult
from polygraphy.json import load_json
from tests.export.replay.replayed import replayed
from tests.runtime.sequential import sequential
from tests.runtime.tensorrt.buckets import DEVICE
from tests.runtime.tensorrt.machines import GATE_BUCKETS, built

from lopa.cli.main import main
from lopa.cli.make.verify import agreement_of_engine
from lopa.export.progress import silent
from lopa.export.verify.cases import SHAPES, random_windows
from lopa.export.verify.token_gate import gate_tolerance
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import open_session
from lopa.runtime.tensorrt.tensorrt_manifest import TENSORRT_ENGINES, BuildFlags, mark_verified


@pytest.fixture
def path(tiny_bundle: Path, tmp_path: Path, trt: ModuleType) -> Path:
    """Return a private copy of a bundle with an unverified engine."""
    copy = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    built(copy, trt, GATE_BUCKETS)
    return copy


@pytest.fixture(autouse=True)
def _limit_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode fewer tokens, and compare one case. A forward in every shape of the engine follows anyway."""
    monkeypatch.setattr("lopa.cli.make.verify._GATE_PROMPTS", 1)
    monkeypatch.setattr("lopa.cli.make.verify._GATE_TOKENS", 8)
    monkeypatch.setattr("lopa.export.verify.cases.SHAPES", SHAPES[8:9])


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(map(str, arguments)))
    return int(caught.value.code or 0)


def verified(path: Path) -> bool:
    (folder,) = TENSORRT_ENGINES.folders(Bundle.open(path))
    assert [each.name for each in folder.glob(".*")] == []
    return TENSORRT_ENGINES.read(folder).engine.verified_on == [DEVICE.name]


def test_engine_decodes_after_verification(path: Path, capsys: pytest.CaptureFixture[str], trt: ModuleType) -> None:
    generate = ("generate", path, "Question: 2 + 3?", "--branches", 4, "--max-new-tokens", 16, "--device", "tensorrt:0")
    assert run(*generate) == 2
    assert f"lopa-export verify {path} --device tensorrt:0" in capsys.readouterr().err
    assert run("verify", path, "--device", "tensorrt:0") == 0
    shown = capsys.readouterr().out
    assert "verified, " in shown
    assert " 0 other tokens, compared with cpu" in shown
    assert "tensorrt:0 agrees with the references in " in shown
    assert verified(path)
    assert {profile for profile, _ in trt.engines.forwards} == {0, 1, 2, 3}
    assert run(*generate) == 0
    found = capsys.readouterr().out
    assert run(*generate[:-1], "cpu") == 0
    assert capsys.readouterr().out == found


@pytest.mark.parametrize(("wrong", "kind"), [(3, "probabilities"), (1, "nothing")])
def test_engine_wrong_in_one_profile_fails(wrong: int, kind: str, path: Path, trt: ModuleType) -> None:
    def corrupt(profile: int, name: str, array: Any) -> Any:
        if profile != wrong:
            return array
        if kind == "probabilities" and name == "topk_logprobs":
            return array - np.float32(0.05)
        if kind == "nothing" and name == "entropy":
            return np.full_like(array, np.nan)
        return array

    folder = TENSORRT_ENGINES.folders(Bundle.open(path))[0]
    found = TENSORRT_ENGINES.read(folder)
    trt.engines.corrupt = corrupt
    agreement = agreement_of_engine(Bundle.open(path), "tensorrt:0", found, "cpu", silent)
    assert not agreement.ok
    assert agreement.other_tokens == 0
    wrong_output = "topk_logprobs" if kind == "probabilities" else "entropy"
    assert [error.output for error in agreement.errors if not error.ok] == [wrong_output]
    assert not verified(path)


def test_int8_products_have_their_own_tolerance(
    tiny_bundle: Path, tmp_path: Path, trt: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stand-in computes in floats, well within the tolerance. Large errors are outside."""
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    built(path, trt, GATE_BUCKETS, BuildFlags(products="int8"))
    trt.engines.corrupt = lambda _profile, name, array: array - np.float32(5) if name == "topk_logprobs" else array
    assert run("verify", path, "--device", "tensorrt:0") == 1
    shown = capsys.readouterr()
    assert "rms rel" in shown.out
    assert "use this engine" in shown.err
    assert not verified(path)
    trt.engines.corrupt = lambda _profile, name, array: array - np.float32(0.05) if name == "topk_logprobs" else array
    assert run("verify", path, "--device", "tensorrt:0") == 0
    assert verified(path)


def test_invalid_reference_device_raises(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (("--device", "tensorrt:0", "--against", "tensorrt-rtx:1"), "another kind of device"),
        (("--against", "cpu"), "--against needs --device tensorrt:N"),
        (("--device", "tensorrt:0", "--against", "nothing"), "device 'nothing'"),
    ):
        assert run("verify", path, *arguments) == 2
        assert message in capsys.readouterr().err
    assert not verified(path)


def test_rebuilt_engine_cannot_be_marked_verified(path: Path, trt: ModuleType) -> None:
    (folder,) = TENSORRT_ENGINES.folders(Bundle.open(path))
    found = TENSORRT_ENGINES.read(folder)
    built(path, trt, GATE_BUCKETS[2:])
    with pytest.raises(BadInputError, match="was changed while the engine was verified"):
        mark_verified(found, DEVICE)
    assert not verified(path)


WRONG = 2
"""Profile of the last shape bucket: [2, 3, 160], prefix 256."""


def flip(profile: int, name: str, array: Any) -> Any:
    return np.flip(array, axis=-1).copy() if (profile, name) == (WRONG, "topk_ids") else array


def test_failed_forwards_of_a_wrong_engine_are_saved(
    path: Path, tmp_path: Path, trt: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    trt.engines.corrupt = flip
    cases = tmp_path / "cases"
    assert run("verify", path, "--device", "tensorrt:0", "--save-cases", cases) == 1
    output = capsys.readouterr()
    assert "expected: the same token wherever the other device clearly prefers one" in output.err
    pattern = r"/cases/failed: (\d) of \1 forwards that differ, with the results of cpu$"
    found = re.search(pattern, output.out, re.MULTILINE)
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
    assert not verified(path)
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
