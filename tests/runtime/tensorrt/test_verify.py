"""lopa-export verify --device tensorrt:N: only engines with correct tokens may decode."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.runtime.tensorrt.buckets import DEVICE
from tests.runtime.tensorrt.machines import GATE_BUCKETS, built

from lopa.cli.main import main
from lopa.cli.make.verify import agreement_of_engine
from lopa.export.progress import silent
from lopa.export.verify.cases import SHAPES
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
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


@pytest.mark.parametrize(("wrong", "kind"), [(3, "tokens"), (3, "probabilities"), (1, "nothing")])
def test_engine_wrong_in_one_profile_fails(
    wrong: int, kind: str, path: Path, trt: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def corrupt(profile: int, name: str, array: Any) -> Any:
        if profile != wrong:
            return array
        if kind == "tokens" and name == "topk_ids":
            return np.flip(array, axis=-1).copy()
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
    assert (agreement.other_tokens > 0) == (kind == "tokens")
    assert [error.output for error in agreement.errors if not error.ok] == {
        "tokens": [],
        "probabilities": ["topk_logprobs"],
        "nothing": ["entropy"],
    }[kind]
    if kind == "tokens":
        assert run("verify", path, "--device", "tensorrt:0") == 1
        assert "expected: the same token wherever the other device clearly prefers one" in capsys.readouterr().err
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
