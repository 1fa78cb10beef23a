"""The whole decoder on "tensorrt-rtx:N", with engines for many GPUs and cached kernels."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.buckets import bucket
from tests.runtime.cuda.stand_in_graphs import StandInGraphs
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential
from tests.runtime.tensorrt.buckets import DEVICE
from tests.runtime.tensorrt.machines import built, built_for_rtx, with_verified

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session
from lopa.runtime.tensorrt.tensorrt_library import RTX
from lopa.runtime.tensorrt.tensorrt_manifest import TENSORRT_ENGINES, BuildFlags, engine_for_device

BUCKETS = [bucket(1, 2, 48, 64), bucket(1, 3, 64, 128)]


@pytest.fixture
def path(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Return a private copy of a bundle without an engine."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def decode(bundle: Bundle) -> None:
    """Run windows in a shape bucket and one that only the range holds."""
    plain, session = open_session(bundle, "cpu", threads=1), open_session(bundle, "tensorrt-rtx:0")
    rng = np.random.default_rng(0)
    for branches, width in ((2, 40), (2, 40), (1, 60)):
        batch = random_batch(rng, (0,), branches, width, 8)
        assert_same_statistics(sequential(session).forward(batch), sequential(plain).forward(batch))
    session.close()
    plain.close()


def test_kernels_are_compiled_once_per_gpu(path: Path, rtx: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_verified(built_for_rtx(path, rtx, BUCKETS))
    bundle, engines = Bundle.open(path), rtx.engines
    decode(bundle)
    # The bucket waits for its kernels, because it is captured next. A long prompt does not wait.
    assert engines.compiled == {(0, "EAGER"), (2, "LAZY")}
    cache = found.folder / "kernels-stand-in-gpu.cache"
    before = cache.read_bytes()
    engines.compiled.clear()
    decode(bundle)
    assert (engines.compiled, cache.read_bytes()) == (set(), before)
    assert [each.name for each in found.folder.iterdir() if each.name.startswith(".")] == []

    engines.gpu = "Other GPU"
    monkeypatch.setattr(
        "lopa.runtime.tensorrt.tensorrt_session.cuda_device", lambda _number: replace(DEVICE, name="Other GPU")
    )
    with pytest.raises(BadInputError, match="was not verified on Other GPU"):
        open_session(bundle, "tensorrt-rtx:0")
    fields = json.loads((found.folder / "engine.json").read_bytes())
    (found.folder / "engine.json").write_text(json.dumps(fields | {"verified_on": [DEVICE.name, "Other GPU"]}))
    shutil.copy(cache, found.folder / "kernels-other-gpu.cache")  # TensorRT recognizes that it belongs to another GPU
    decode(bundle)
    assert engines.compiled == {(0, "EAGER"), (2, "LAZY")}
    assert "Other GPU" in (found.folder / "kernels-other-gpu.cache").read_text()


def test_unusable_kernel_cache_is_ignored(path: Path, rtx: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    found = with_verified(built_for_rtx(path, rtx, BUCKETS))
    (found.folder / "kernels-stand-in-gpu.cache").mkdir()
    with caplog.at_level(logging.INFO):
        decode(Bundle.open(path))
    assert "compiling kernels again" in caplog.text
    assert "cannot save the compiled kernels" in caplog.text
    assert rtx.engines.compiled != set()


def test_streamed_weights_run_without_graphs(path: Path, rtx: ModuleType, cuda: StandInGraphs) -> None:
    """The builder allows streamed weights only without capture."""
    with_verified(built_for_rtx(path, rtx, BUCKETS, BuildFlags(weight_streaming=True)))
    for _ in range(2):
        decode(Bundle.open(path))
    assert (cuda.launches, {way for _, way in rtx.engines.forwards}) == (0, {"plain"})


def test_engine_is_chosen_by_compute_capability(path: Path, rtx: ModuleType) -> None:
    bundle = Bundle.open(path)
    many, few = built_for_rtx(path, rtx), built_for_rtx(path, rtx, capabilities=["86", "8.9"])
    assert [each.name for each in TENSORRT_ENGINES.folders(bundle)] == [many.name, few.name]
    assert (many.name, few.name) == ("tensorrt-rtx-1.7.1.116", "tensorrt-rtx-sm86-sm89-1.7.1.116")

    def found(capability: str, version: str = "1.7.1.116") -> str:
        return engine_for_device(bundle, replace(DEVICE, capability=capability), version, RTX).name

    assert (found("8.9"), found("12.0"), found("8.0")) == (few.name, many.name, many.name)
    with pytest.raises(BadInputError, match=r"was built for GPUs of compute capability 8\.0 and later; .* 8\.6, 8\.9"):
        found("7.5")
    with pytest.raises(BadInputError, match=r"was built by TensorRT for RTX 1\.7\.1\.116"):
        found("8.9", "1.8.0.1")


def test_fp8_engine_needs_an_fp8_gpu(path: Path, rtx: ModuleType) -> None:
    bundle = Bundle.open(path)
    found = built_for_rtx(path, rtx, flags=BuildFlags(products="fp8"))
    assert found.engine.gpus == "GPUs of compute capability 8.9 and later"
    assert engine_for_device(bundle, replace(DEVICE, capability="8.9"), "1.7.1.116", RTX) == found
    with pytest.raises(BadInputError, match="fp8 products"):
        engine_for_device(bundle, replace(DEVICE, capability="8.6"), "1.7.1.116", RTX)


def test_engines_of_both_libraries_in_one_bundle(path: Path, trt: ModuleType, rtx: ModuleType) -> None:
    """Each device uses its library's engines. The error names the library of the other engines."""
    bundle = Bundle.open(path)
    with_verified(built_for_rtx(path, rtx))
    with pytest.raises(
        BadInputError, match=r"was built by TensorRT for RTX 1\.7\.1\.116, for the device tensorrt-rtx:N"
    ):
        open_session(bundle, "tensorrt:0")
    with_verified(built(path, trt))
    for device, module in (("tensorrt:0", trt), ("tensorrt-rtx:0", rtx)):
        before = len(module.engines.forwards)
        session = open_session(bundle, device)
        sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 2, 40, 8))
        session.close()
        assert len(module.engines.forwards) > before
    shutil.rmtree(next(each for each in TENSORRT_ENGINES.folders(bundle) if "rtx" in each.name))
    with pytest.raises(
        BadInputError, match=r"was built by TensorRT 11\.4\.0\.106, for the device tensorrt:N"
    ) as caught:
        open_session(bundle, "tensorrt-rtx:0")
    assert caught.value.remedy.endswith("lopa-export tensorrt BUNDLE --rtx")
