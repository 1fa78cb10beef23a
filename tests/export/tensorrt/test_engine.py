"""Builds over the recorded API of TensorRT 10 and 11: calls, kept files and errors."""

import json
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.export.tensorrt.interrupted_build import state_after_interrupt
from tests.runtime.tensorrt.buckets import BUCKETS, DEVICE, target
from tests.runtime.tensorrt.recorded_api import MAJORS
from tests.runtime.tensorrt.stand_in_tensorrt import PHASES, stand_in_tensorrt

from lopa.export.progress import silent
from lopa.export.tensorrt.engine import EngineJob, engine_from_job, job_from_bundle
from lopa.export.tensorrt.products import Products
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import input_names
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.plan_file import check_file
from lopa.runtime.tensorrt.tensorrt_manifest import PLAN_NAME, BuildFlags, engine_for_device, target_of_device

TRT = stand_in_tensorrt(10)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Bundle:
    """Return a copy for engines. Hard links do not work: ONNX rejects external data that has several."""
    return Bundle.open(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.fixture
def job(bundle: Bundle) -> EngineJob:
    return job_from_bundle(bundle, BUCKETS, BuildFlags())


def _description(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "engine.plan").read_text()))


def _left(bundle: Bundle) -> list[str]:
    engines = bundle.path / "engines"
    return sorted(path.name for path in engines.iterdir()) if engines.exists() else []


@pytest.mark.parametrize("major", MAJORS)
def test_an_engine_is_built_and_found_again(bundle: Bundle, job: EngineJob, major: int) -> None:
    trt = stand_in_tensorrt(major)
    made = engine_from_job(job, trt, target(trt), None, silent)
    assert not made.cached
    found = engine_for_device(bundle, DEVICE, trt.__version__)
    assert found == made.found
    engine = found.engine
    assert engine.target == target(trt)
    assert (engine.buckets, engine.verified_on) == (BUCKETS, [])
    assert json.loads((found.folder / "layers.json").read_text()) == {"Layers": ["a layer"]}
    assert json.loads(check_file(found, PLAN_NAME).read_bytes()) == _description(found.folder)
    cache = f"timing-stand-in-gpu-{trt.__version__}.cache"
    assert _left(bundle) == [f"tensorrt-sm90-{trt.__version__}", cache]


@pytest.mark.parametrize("wanted", [True, False])
def test_requested_plugins_are_registered_for_the_gpu(
    tiny_plugins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    registered: list[tuple[int, int]] = []
    monkeypatch.setattr("lopa.export.tensorrt.engine.register_plugins", registered.append)
    bundle = Bundle.open(shutil.copytree(tiny_plugins, tmp_path / "bundle"))
    job = job_from_bundle(bundle, BUCKETS, BuildFlags(plugins=wanted))
    made = engine_from_job(job, TRT, target(TRT), None, silent)
    assert registered == ([(9, 0)] if wanted else [])
    assert made.found.engine.flags.plugins == wanted
    assert engine_from_job(job, TRT, target(TRT), None, silent).cached
    assert len(registered) == wanted  # without a build no library is required


def test_plugins_for_a_graph_without_them_are_rejected(bundle: Bundle) -> None:
    with pytest.raises(BadInputError, match="whose graph calls no plugins"):
        job_from_bundle(bundle, BUCKETS, BuildFlags(plugins=True))


def test_profiles_match_the_buckets_and_the_range(bundle: Bundle, job: EngineJob) -> None:
    folder = engine_from_job(job, TRT, target(TRT), None, silent).found.folder
    profiles = _description(folder)["profiles"]
    layers = bundle.manifest.dimensions.layers
    assert [list(each) for each in profiles] == [input_names(layers)] * (len(BUCKETS) + 1)
    for bucket, profile in zip(BUCKETS, profiles, strict=False):
        window = [bucket.requests, bucket.branches, bucket.window]
        assert profile["input_ids"] == [window] * 3
        assert profile["window_mask"] == [[*window, bucket.window]] * 3
        assert profile["prefix_mask"] == [[bucket.requests, bucket.prefix]] * 3
        assert profile["logits_index"] == [[bucket.requests, bucket.branches, bucket.wanted]] * 3
    assert profiles[-1]["input_ids"] == [[1, 1, 289], [1, 1, 512], [2, 1, 640]]
    assert [shape[2] for shape in profiles[-1]["past_key_values.0.key"]] == [64, 64, 896]


@pytest.mark.parametrize(
    ("major", "flags", "names", "limits"),
    [
        (10, BuildFlags(), [], {}),
        (11, BuildFlags(weight_streaming=True), ["WEIGHT_STREAMING"], {}),
        (10, BuildFlags(strip_weights=True), ["REFIT_IDENTICAL", "STRIP_PLAN"], {}),
        (11, BuildFlags(version_compatible=True, workspace=5 << 30), ["VERSION_COMPATIBLE"], {"WORKSPACE": 5 << 30}),
    ],
)
def test_flags_exist_in_both_versions(
    bundle: Bundle, flags: BuildFlags, names: list[str], limits: dict[str, int], major: int
) -> None:
    trt = stand_in_tensorrt(major)
    made = engine_from_job(job_from_bundle(bundle, BUCKETS, flags), trt, target(trt), None, silent)
    found = _description(made.found.folder)
    assert (found["flags"], found["cleared"], found["limits"]) == (names, ["TF32"], limits)
    assert made.found.engine.flags == flags


def test_an_unchanged_request_builds_nothing(job: EngineJob) -> None:
    first = engine_from_job(job, TRT, target(TRT), None, silent)
    calls = TRT.__dict__["calls"]
    before = len(calls)
    again = engine_from_job(job, TRT, target(TRT), None, silent)
    assert (again.cached, again.found, len(calls)) == (True, first.found, before)


def _other_flags(job: EngineJob) -> EngineJob:
    return replace(job, flags=BuildFlags(workspace=1 << 30))


def _other_buckets(job: EngineJob) -> EngineJob:
    return replace(job, buckets=BUCKETS[1:])


def test_everything_that_matters_is_in_the_key(bundle: Bundle, job: EngineJob) -> None:
    manifest = bundle.manifest
    others = [
        msgspec.structs.replace(each, sha256="00") if each.path == manifest.weights else each for each in manifest.files
    ]
    other_bundle = replace(bundle, manifest=msgspec.structs.replace(manifest, files=others))
    keys = {
        job.cache_key(target_of_device(DEVICE, "10.15.1.29")),
        job.cache_key(target_of_device(DEVICE, "10.15.1.30")),
        job.cache_key(target_of_device(replace(DEVICE, name="Other"), "10.15.1.29")),
        job.cache_key(target_of_device(replace(DEVICE, capability="8.0"), "10.15.1.29")),
        replace(job, model=job.model + b" ").cache_key(target_of_device(DEVICE, "10.15.1.29")),
        replace(job, bundle=other_bundle).cache_key(target_of_device(DEVICE, "10.15.1.29")),
        _other_flags(job).cache_key(target_of_device(DEVICE, "10.15.1.29")),
        _other_buckets(job).cache_key(target_of_device(DEVICE, "10.15.1.29")),
    }
    assert len(keys) == 8
    assert job.cache_key(target_of_device(replace(DEVICE, number=3), "10.15.1.29")) in keys


def test_a_damaged_engine_is_built_again(job: EngineJob) -> None:
    folder = engine_from_job(job, TRT, target(TRT), None, silent).found.folder
    (folder / "engine.plan").write_bytes(b"half")
    assert not engine_from_job(job, TRT, target(TRT), None, silent).cached
    assert check_file(engine_from_job(job, TRT, target(TRT), None, silent).found, PLAN_NAME)


def test_a_timing_cache_is_read_and_written(job: EngineJob, tmp_path: Path) -> None:
    cache = tmp_path / "times" / "timing.cache"
    engine_from_job(job, TRT, target(TRT), cache, silent)
    first = cache.read_bytes()
    engine_from_job(_other_flags(job), TRT, target(TRT), cache, silent)
    assert cache.read_bytes() == first * 2  # the stand-in appends its timings
    assert [path.name for path in cache.parent.iterdir()] == ["timing.cache"]


@pytest.mark.parametrize("content", [b"nonsense", b"timed 10.15.1.29 Other GPU more\n"])
def test_a_timing_cache_of_another_build_is_rejected(
    bundle: Bundle, job: EngineJob, tmp_path: Path, content: bytes
) -> None:
    cache = tmp_path / "timing.cache"
    cache.write_bytes(content)
    with pytest.raises(BadInputError, match=r"timing\.cache is not a timing cache of this TensorRT version"):
        engine_from_job(job, TRT, target(TRT), cache, silent)
    assert (_left(bundle), cache.read_bytes()) == ([], content)


def test_a_timing_cache_that_cannot_be_written_fails_before_the_build(job: EngineJob, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = len(TRT.__dict__["calls"])
    with pytest.raises(BadInputError, match="cannot be written"):
        engine_from_job(job, TRT, target(TRT), tmp_path / "file" / "timing.cache", silent)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "absent" / "timing.cache")
    with pytest.raises(BadInputError, match="link: No such file"):
        engine_from_job(job, TRT, target(TRT), link, silent)
    assert len(TRT.__dict__["calls"]) == before


def test_progress_is_that_of_the_outermost_phases(job: EngineJob) -> None:
    reports: list[tuple[str, int, int]] = []
    engine_from_job(job, TRT, target(TRT), None, lambda *each: reports.append(each))
    expected = [(phase, done, steps) for phase, steps in PHASES.items() for done in (*range(steps + 1), steps)]
    assert reports == expected


def test_an_interrupted_build_ends_and_leaves_nothing(bundle: Bundle) -> None:
    """Press Ctrl-C while the calling thread waits. It must cancel the build and wait for its end."""
    seen = state_after_interrupt(bundle.path)
    assert (seen.interrupted, seen.building, seen.left) == (True, False, [])
    assert [step for _, step, _ in seen.reports] == [0, 1]


def test_a_stored_error_keeps_no_builder(job: EngineJob) -> None:
    trt = stand_in_tensorrt(10, cannot_build="no kernel")
    builders, make = list[weakref.ref[Any]](), trt.Builder.__init__

    def noted(builder: Any, logger: Any) -> None:
        builders.append(weakref.ref(builder))
        make(builder, logger)

    trt.Builder.__init__ = noted
    with pytest.raises(BadInputError, match="no kernel") as kept:
        engine_from_job(job, trt, target(trt), None, silent)
    assert ([each() for each in builders], kept.value.exit_code) == ([None], 2)


def test_a_failed_build_names_the_reason_and_keeps_the_old_engine(bundle: Bundle, job: EngineJob) -> None:
    first = engine_from_job(job, TRT, target(TRT), None, silent)
    names = _left(bundle)
    failing = stand_in_tensorrt(10, cannot_build="Could not find any implementation for node head")
    with pytest.raises(BadInputError, match=r"could not build the network\n  TensorRT: Could not find any"):
        engine_from_job(_other_flags(job), failing, target(failing), None, silent)
    assert engine_for_device(bundle, DEVICE, TRT.__version__) == first.found
    assert _left(bundle) == names


def test_the_parser_s_message_is_passed_on(bundle: Bundle, job: EngineJob) -> None:
    bare = replace(job, model=job.model.replace(b"TRT_decomposable", b"TRT_d_composable"))
    with pytest.raises(BadInputError, match="parser rejects the graph: Attention node 0: there is no a fused kernel"):
        engine_from_job(bare, TRT, target(TRT), None, silent)
    assert _left(bundle) == []


def test_an_engine_that_does_not_open_is_kept(bundle: Bundle, job: EngineJob) -> None:
    """Check that only the report is missing: the build took minutes, and opening may have failed for lack of memory."""
    trt = stand_in_tensorrt(11)

    def refuse(runtime: Any, **_reader: Any) -> None:
        runtime.state.logger.log(trt.ILogger.ERROR, "out of memory")

    trt.Runtime.deserialize_cuda_engine = refuse
    made = engine_from_job(job, trt, target(trt), None, silent)
    assert made.no_layers == "TensorRT cannot open the engine on this machine\n  TensorRT: out of memory"
    assert engine_for_device(bundle, DEVICE, trt.__version__) == made.found
    assert sorted(path.name for path in made.found.folder.iterdir()) == ["engine.json", "engine.plan"]
    assert made.found.engine.verified_on == []


def test_a_portable_bundle_is_rejected(tiny_portable: Path) -> None:
    with pytest.raises(BadInputError, match="only a graph in the portable dialect"):
        job_from_bundle(Bundle.open(tiny_portable), BUCKETS, BuildFlags())


@pytest.mark.parametrize("products", ["int8", "fp8"])
def test_8_bit_products_of_integers_are_rejected(tiny_quantized: Path, products: Products) -> None:
    with pytest.raises(BadInputError, match=f"--{products} for .*, whose matrices are int"):
        job_from_bundle(Bundle.open(tiny_quantized), BUCKETS, BuildFlags(products=products))


@pytest.mark.parametrize("stored", [False, True])
def test_fp8_needs_a_gpu_with_fp8(
    bundle: Bundle, export_tiny: Callable[..., Path], tmp_path: Path, *, stored: bool
) -> None:
    """The flag and a bundle with FP8 matrices make products in FP8."""
    if stored:
        bundle = Bundle.open(shutil.copytree(export_tiny(with_logits=False, quantize="fp8"), tmp_path / "fp8"))
    job = job_from_bundle(bundle, BUCKETS, BuildFlags() if stored else BuildFlags(products="fp8"))
    with pytest.raises(BadInputError, match=r"FP8 products for Stand-in GPU, of compute capability 8\.6"):
        engine_from_job(job, TRT, target(TRT, replace(DEVICE, capability="8.6")), None, silent)
    for capability in ("8.9", "10.0"):
        made = engine_from_job(job, TRT, target(TRT, replace(DEVICE, capability=capability)), None, silent)
        assert made.found.engine.flags.products == "fp8"
