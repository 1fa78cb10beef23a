"""TensorRT for RTX over its recorded API: targets, flags, and unsupported options."""

import json
import shutil
from pathlib import Path

import pytest
from tests.runtime.tensorrt.buckets import BUCKETS, DEVICE
from tests.runtime.tensorrt.recorded_api import RTX
from tests.runtime.tensorrt.stand_in_tensorrt import stand_in_tensorrt

from lopa.export.progress import silent
from lopa.export.tensorrt.engine import TensorRTBuild, engine_from_job, job_from_bundle
from lopa.export.tensorrt.rtx import check_rtx_takes, target_of_rtx
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.tensorrt.tensorrt_manifest import BuildFlags


@pytest.mark.parametrize(
    ("requested", "capabilities", "folder"),
    [
        ((), [], "tensorrt-rtx-1.7.1.116"),
        (("8.6",), ["8.6"], "tensorrt-rtx-sm86-1.7.1.116"),
        (("120", "sm75", " SM121 ", "8.9", "89"), ["7.5", "8.9", "12.0", "12.1"], None),
    ],
)
def test_compute_capabilities(requested: tuple[str, ...], capabilities: list[str], folder: str | None) -> None:
    target = target_of_rtx(stand_in_tensorrt(RTX), requested, BuildFlags())
    assert (target.library, target.version, target.gpu) == ("tensorrt-rtx", "1.7.1.116", None)
    assert target.capabilities == capabilities
    assert folder in (None, target.folder_name)


@pytest.mark.parametrize("requested", ["9.0", "8.60", "", "rtx 4090", "8.7", "-86", "８６", "current"])
def test_unknown_capabilities(requested: str) -> None:
    with pytest.raises(BadInputError, match=f"--compute-capability {requested}") as caught:
        target_of_rtx(stand_in_tensorrt(RTX), [requested], BuildFlags())
    assert caught.value.expected.endswith("builds for: 7.5, 8.0, 8.6, 8.9, 12.0, 12.1")


def test_fp8_requires_gpus_with_fp8() -> None:
    flags = BuildFlags(products="fp8")
    with pytest.raises(BadInputError, match=r"FP8 products for compute capability 7\.5, 8\.6"):
        target_of_rtx(stand_in_tensorrt(RTX), ["8.6", "8.9", "7.5"], flags)
    assert target_of_rtx(stand_in_tensorrt(RTX), ["8.9", "12.0"], flags).capabilities == ["8.9", "12.0"]
    assert target_of_rtx(stand_in_tensorrt(RTX), [], flags).capabilities == []


@pytest.mark.parametrize(
    ("flags", "timing_cache", "message"),
    [
        (BuildFlags(version_compatible=True), False, "--version-compatible with --rtx"),
        (BuildFlags(plugins=True), False, "--plugins with --rtx"),
        (BuildFlags(), True, "--timing-cache with --rtx"),
    ],
)
def test_unsupported_options(flags: BuildFlags, timing_cache: bool, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        check_rtx_takes(flags, timing_cache=timing_cache)
    check_rtx_takes(BuildFlags(weight_streaming=True, strip_weights=True, products="int8"), timing_cache=False)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(Path(shutil.copytree(tiny_bundle, tmp_path / "bundle")))


def build(bundle: Bundle, capabilities: tuple[str, ...] = (), flags: BuildFlags | None = None) -> TensorRTBuild:
    rtx, flags = stand_in_tensorrt(RTX), flags or BuildFlags()
    job = job_from_bundle(bundle, BUCKETS, flags)
    return engine_from_job(job, rtx, target_of_rtx(rtx, capabilities, flags), None, silent)


def test_a_build(bundle: Bundle) -> None:
    """Check that builds get capabilities and the capture flag, time nothing, and open no engine without a GPU."""
    flags = BuildFlags(workspace=1 << 30, products="int8")
    made = build(bundle, ("8.9", "86"), flags)
    plan = json.loads((made.found.folder / "engine.plan").read_bytes())
    assert plan["capabilities"] == ["SM86", "SM89"]
    assert (plan["flags"], plan["limits"]) == (["REQUIRE_USER_ALLOCATION"], {"WORKSPACE": 1 << 30})
    assert made.no_layers == "this machine has no GPU to open the engine on"
    assert sorted(each.name for each in made.found.folder.iterdir()) == ["engine.json", "engine.plan"]
    assert sorted(each.name for each in made.found.folder.parent.iterdir()) == [made.found.name]  # no timing cache
    assert build(bundle, ("86", "8.9"), flags).cached
    streamed = build(bundle, ("86", "8.9"), BuildFlags(weight_streaming=True))
    assert json.loads((streamed.found.folder / "engine.plan").read_bytes())["flags"] == ["WEIGHT_STREAMING"]
    assert json.loads((build(bundle).found.folder / "engine.plan").read_bytes())["capabilities"] == []


def test_stripping_weights_needs_a_gpu(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = BuildFlags(strip_weights=True)
    with pytest.raises(MissingBackendError, match="--strip-weights with --rtx on a machine without a GPU"):
        build(bundle, flags=flags)
    assert not (bundle.path / "engines").exists()
    monkeypatch.setattr("lopa.export.tensorrt.engine.cuda_device", lambda _number: DEVICE)
    made = build(bundle, flags=flags)
    assert (made.no_layers, made.cached) == (None, False)
    names = ["engine.json", "engine.plan", "layers.json", "model.onnx"]
    assert sorted(each.name for each in made.found.folder.iterdir()) == names
