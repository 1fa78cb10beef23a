"""Every kind of bundle, parsed and built by the real TensorRT for RTX without a GPU; no engine is opened."""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest
from tests.buckets import bucket
from tests.export.tensorrt.interrupted_build import state_after_interrupt

from lopa.export.progress import silent
from lopa.export.tensorrt.builder import BuildRequest, BuiltPlan, plan_from_request
from lopa.export.tensorrt.engine import EngineJob, engine_from_job, job_from_bundle
from lopa.export.tensorrt.products import Products
from lopa.export.tensorrt.rtx import target_of_rtx
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import ValueForm, inputs_of_graph, outputs_of_graph
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.errors import BadInputError
from lopa.runtime.tensorrt.profiles import exact_range
from lopa.runtime.tensorrt.tensorrt_manifest import PLAN_NAME, BuildFlags

pytestmark = pytest.mark.tensorrt_rtx

BUCKET = bucket(1, 2, 32, 64)
PLAN_START = b"vtrt"
"""First bytes of every plan of version 1.7."""
FUSED: dict[str, set[bytes]] = {
    "float32": set(),
    "float16": {b"fmha::Ampere_hmma_fp16_traits"},
    "bfloat16": {b"fmha::Ampere_hmma_bf16_traits"},
}
"""Names of fused attention kernels, by the bundle's type."""
TYPES = {"int64": "INT64", "bool": "BOOL", "float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}
"""TensorRT's names of the contract's types."""


@pytest.fixture
def in_floating_point(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


@pytest.mark.parametrize(
    ("in_floating_point", "products"),
    [("tiny_bundle", "graph"), ("tiny_bundle", "int8"), ("tiny_half", "fp8"), ("tiny_bfloat16", "graph")],
    indirect=["in_floating_point"],
)
def test_a_bucket_in_floating_point_and_in_8_bits(
    in_floating_point: Path, products: Products, real_rtx: ModuleType, tmp_path: Path
) -> None:
    job = _job(in_floating_point, BuildFlags(products=products))
    plan = _checked_plan(real_rtx, job, tmp_path)
    if job.bundle.manifest.dtype == "float32":
        assert (len(plan) > job.bundle.weights.stat().st_size) == (products == "graph")


@pytest.mark.parametrize("tiny_quantized", ["int8", "int4", "fp8"], indirect=True)
def test_a_bucket_of_a_quantized_bundle(tiny_quantized: Path, real_rtx: ModuleType, tmp_path: Path) -> None:
    _checked_plan(real_rtx, _job(tiny_quantized), tmp_path)


def test_angles_of_a_float16_graph_are_float32(tiny_half: Path, real_rtx: ModuleType) -> None:
    """Check the network's types."""
    job = _job(tiny_half)
    with _network(real_rtx, job.model, job.bundle) as network:
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        found = [layer for layer in layers if layer.name in ("Cos", "Sin")]
        types = [each.dtype for layer in found for each in (layer.get_input(0), layer.get_output(0))]
    assert [layer.name for layer in found] == ["Cos", "Sin"]
    assert set(types) == {real_rtx.DataType.FLOAT}


def test_a_bucket_of_plugins_by_their_bodies(tiny_plugins: Path, real_rtx: ModuleType, tmp_path: Path) -> None:
    job = _job(tiny_plugins)
    assert {each.domain for each in onnx.load_model_from_string(job.model).functions} == {"lopa"}
    _checked_plan(real_rtx, job, tmp_path)


def test_a_bucket_of_layers_with_norms_of_queries_and_keys(wedlm: Bundle, real_rtx: ModuleType, tmp_path: Path) -> None:
    """Check also heads that are wider in total than the hidden size."""
    _checked_plan(real_rtx, _job(wedlm.path), tmp_path)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llada2", {"quantize": "int4"}),
        ("sdar_moe", {"quantize": "int8"}),
        ("sdar_moe", {"quantize": "fp8"}),
    ],
)
def test_a_bucket_of_experts(
    family: str, options: dict[str, str], family_bundle: Callable[..., Path], real_rtx: ModuleType, tmp_path: Path
) -> None:
    bundle = Bundle.open(family_bundle(family, **options))
    job = _job(bundle.path)
    graph = onnx.load_model_from_string(job.model).graph
    experts = [node.name for node in graph.node if node.op_type == "MatMul" and ".experts/" in node.name]
    moe = bundle.manifest.dimensions.moe
    assert moe is not None
    # One product per matrix and sparse layer, with the records of all experts.
    assert len(experts) == 3 * (bundle.manifest.dimensions.layers - len(moe.dense_layers))
    records = bundle.manifest.tensors
    stacked = {each.name: each for each in graph.initializer if each.name.endswith(".experts.gate.weight")}
    assert {int(each.external_data[1].value) for each in stacked.values()} == {records[name].offset for name in stacked}
    _checked_plan(real_rtx, job, tmp_path)


def test_a_bucket_and_the_range_make_one_engine(tiny_bundle: Path, real_rtx: ModuleType, tmp_path: Path) -> None:
    """Run all steps of `lopa-export tensorrt --rtx` for a given GPU."""
    bundle = Bundle.open(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    flags = BuildFlags()
    job, target = job_from_bundle(bundle, [BUCKET], flags), target_of_rtx(real_rtx, ["8.6"], flags)
    progress: list[tuple[str, int, int]] = []
    made = engine_from_job(job, real_rtx, target, None, lambda *each: progress.append(each))
    plan = (made.found.folder / PLAN_NAME).read_bytes()
    assert plan.startswith(PLAN_START)
    assert len(plan) > bundle.weights.stat().st_size
    assert (progress[0][1], progress[-1][1]) == (0, progress[-1][2])
    assert made.found.engine.target.capabilities == ["8.6"]
    assert engine_from_job(job, real_rtx, target, None, silent).cached


@pytest.mark.slow
def test_ctrl_c_ends_a_build_at_once(tiny_bundle: Path, real_rtx: ModuleType, tmp_path: Path) -> None:
    """Check that no thread builds afterwards, most of the build was skipped, and nothing is left."""
    seen = state_after_interrupt(shutil.copytree(tiny_bundle, tmp_path / "bundle"), real_rtx)
    assert (seen.interrupted, seen.building, seen.left) == (True, False, [])
    # An interrupted phase reports that it is complete.
    assert {step for _, step, _ in seen.reports} < set(range(seen.reports[0][2] + 1))


@pytest.mark.parametrize("tiny_quantized", ["int8"], indirect=True)
def test_errors_of_the_real_parser_are_reported(tiny_quantized: Path, real_rtx: ModuleType, tmp_path: Path) -> None:
    """Use the graph of ONNX Runtime, with zero points of 128."""
    job = _job(tiny_quantized)
    with pytest.raises(
        BadInputError, match=r"parser rejects the graph: QuantizeLinear .*Non-zero zero point"
    ) as raised:
        _built(real_rtx, replace(job, model=job.bundle.graph.read_bytes()), tmp_path / PLAN_NAME)
    assert "export" in raised.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_real_builder_are_reported(tiny_bundle: Path, real_rtx: ModuleType, tmp_path: Path) -> None:
    """Use float32 attention that must be one kernel."""
    job = _job(tiny_bundle)
    fused = job.model.replace(b"TRT_decomposable", b"TRT_d_composable")
    with pytest.raises(BadInputError, match=r"could not build the network\n(.*\n)*.*TensorRT: .*is_decomposable"):
        _built(real_rtx, replace(job, model=fused), tmp_path / PLAN_NAME)
    assert list(tmp_path.iterdir()) == []


def test_one_engine_for_every_capability_in_float16(tiny_half: Path, real_rtx: ModuleType, tmp_path: Path) -> None:
    """Check by kernel names that the engine uses the oldest capability's kernels for all capabilities."""
    names = [name[2:] for name in real_rtx.ComputeCapability.__members__ if name.startswith("SM")]
    assert len(names) == 6
    _built(real_rtx, _job(tiny_half), tmp_path / PLAN_NAME, names)
    assert _fused_kernels((tmp_path / PLAN_NAME).read_bytes()) == {b"fmha::Turing_hmma_fp16_traits"}


def test_weights_that_stay_on_the_host(tiny_bundle: Path, real_rtx: ModuleType, tmp_path: Path) -> None:
    """Check that engines with streamed weights are built without capture, since the builder rejects both together."""
    job = _job(tiny_bundle, BuildFlags(weight_streaming=True))
    _built(real_rtx, job, tmp_path / PLAN_NAME)
    assert (tmp_path / PLAN_NAME).stat().st_size > job.bundle.weights.stat().st_size


def _job(path: Path, flags: BuildFlags | None = None) -> EngineJob:
    return job_from_bundle(Bundle.open(path), [BUCKET], flags or BuildFlags())


def _checked_plan(rtx: ModuleType, job: EngineJob, folder: Path) -> bytes:
    """Return the plan for one shape bucket, of a network with the inputs and outputs of the contract."""
    manifest = job.bundle.manifest
    whole = whole_model(manifest.dimensions.layers)
    assert _parsed(rtx, job.model, job.bundle) == {
        "inputs": _tensorrt_types(inputs_of_graph(manifest, whole)),
        "outputs": _tensorrt_types(outputs_of_graph(manifest, whole)),
    }
    built = _built(rtx, job, folder / PLAN_NAME)
    plan = (folder / PLAN_NAME).read_bytes()
    assert plan.startswith(PLAN_START)
    assert built.plan.size == len(plan)
    assert built.timing_cache is None
    assert _fused_kernels(plan) == FUSED[manifest.dtype]
    return plan


def _fused_kernels(plan: bytes) -> set[bytes]:
    return set(re.findall(rb"fmha::\w+_traits\b", plan))


def _built(rtx: ModuleType, job: EngineJob, path: Path, capabilities: Sequence[str] = ()) -> BuiltPlan:
    request = BuildRequest(
        model=job.model,
        graph_path=job.bundle.graph,
        manifest=job.bundle.manifest,
        profiles=[exact_range(BUCKET)],
        flags=job.flags,
        target=target_of_rtx(rtx, capabilities, job.flags),
        timing_cache=None,
    )
    return plan_from_request(rtx, request, path, silent)


Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Type and axes by name, with -1 for a dynamic axis."""


def _tensorrt_types(values: dict[str, ValueForm]) -> Tensors:
    return {
        name: (TYPES[form.type], tuple(axis if isinstance(axis, int) else -1 for axis in form.axes))
        for name, form in values.items()
    }


@contextmanager
def _network(rtx: ModuleType, model: bytes, bundle: Bundle) -> Iterator[Any]:
    logger = rtx.Logger(rtx.Logger.ERROR)
    builder = rtx.Builder(logger)
    network = builder.create_network(1 << int(rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = rtx.OnnxParser(network, logger)
    assert parser.parse(model, str(bundle.graph)), [
        parser.get_error(index).desc() for index in range(parser.num_errors)
    ]

    yield network


def _parsed(rtx: ModuleType, model: bytes, bundle: Bundle) -> dict[str, Tensors]:
    def tensors(count: int, get: Any) -> Tensors:
        return {each.name: (each.dtype.name, tuple(each.shape)) for each in map(get, range(count))}

    with _network(rtx, model, bundle) as network:
        return {
            "inputs": tensors(network.num_inputs, network.get_input),
            "outputs": tensors(network.num_outputs, network.get_output),
        }
