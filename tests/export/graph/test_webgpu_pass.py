"""Quantized portable graphs and their twins for WebGPU, in exact products, compared with the numpy reference."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tests.export.checkpoints import small_checkpoint
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.graph.portable_lint import violations_of_model
from lopa.export.graph.webgpu_pass import PlainAttentionPass
from lopa.export.verify.canvas_check import NumpyCanvasReference, differences_of_canvases
from lopa.export.weights.plan import Dtype
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.bundle.webgpu_twin import webgpu_graph, webgpu_initializers, webgpu_tensor_names
from lopa.runtime.contract import Statistics, WindowBatch
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.bound_forward import BoundForward
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.onnxruntime_session import OnnxPortableForward, OnnxRuntimeBinding
from lopa.runtime.sessions.prefix_cache import Prefix, cache_shape_from_manifest
from lopa.runtime.sessions.session import open_session

SIZES = {"intermediate_size": 96, "vocab_size": 33}
"""Two layers, a head with an odd number of outputs, and a matrix of three blocks."""
TOLERANCES: dict[Dtype, float] = {"float32": 2e-4, "float16": 1e-1}
"""Allowed difference of log-probabilities, in nats."""
WEBGPU_TOLERANCES: dict[Dtype, float] = {"float32": 2e-4, "float16": 5e-1}
"""The same for WebGPU, which adds up products in float16."""


@pytest.fixture(scope="module", params=[("int4", "float16"), ("int8", "float32")], ids="-".join)
def both(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Bundle:
    """Return quantized bundles with both dialects: each kind and each type once."""
    kind, dtype = request.param
    folder = tmp_path_factory.mktemp("webgpu")
    checkpoint = small_checkpoint(folder / "checkpoint", changes=SIZES)
    return bundle_from_checkpoint(
        checkpoint,
        folder / "bundle",
        dtype=dtype,
        quantization=QuantizationChoice(kind),
        dialects=("standard", "portable"),
    )


def batches() -> Iterator[WindowBatch]:
    """Yield random windows of one request with several branches."""
    for seed, (branches, width) in enumerate([(1, 1), (1, 24), (3, 8)]):
        batch = random_batch(np.random.default_rng(seed), [0], branches, width, min(width, 5))
        yield replace(batch, input_ids=batch.input_ids % SIZES["vocab_size"])


def session_of_twin(bundle: Bundle, device: Any = None, profile: Path | None = None) -> ort.InferenceSession:
    """Open the twin as a session on WebGPU does: without `device` on ONNX Runtime's CPU provider."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    arrays = webgpu_initializers(bundle)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    options.add_external_initializers(list(values), list(values.values()))
    if device is None:
        # One matrix of an int8 twin may still be dequantized. MatMulNBits has the level as an attribute.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        return ort.InferenceSession(str(webgpu_graph(bundle)), options, providers=["CPUExecutionProvider"])
    options.add_session_config_entry("ep.webgpuexecutionprovider.enableInt64", "1")
    options.add_provider_for_devices([device], {})
    return ort.InferenceSession(str(webgpu_graph(bundle)), options)


def forward_of(session: ort.InferenceSession, bundle: Bundle) -> OnnxPortableForward:
    return OnnxPortableForward(session, bundle.with_dialect("portable").manifest.rotary)


def assert_agrees(session: ort.InferenceSession, bundle: Bundle, tolerance: float) -> None:
    """Compare a graph with numpy, on the bundle's own numbers, without cached tokens."""
    oracle, forward = open_session(bundle, "numpy"), forward_of(session, bundle)
    for batch in batches():
        found, expected = _statistics(forward, bundle, batch), sequential(oracle).forward(batch)
        oracle.free(0)
        assert found.topk_logprobs == pytest.approx(expected.topk_logprobs, abs=tolerance)
        assert found.entropy == pytest.approx(expected.entropy, abs=tolerance)


def _statistics(forward: OnnxPortableForward, bundle: Bundle, batch: WindowBatch) -> Statistics:
    shape = cache_shape_from_manifest(bundle.manifest)
    prefix: Prefix = shape.zeros(1, 8)
    return forward.run(batch, prefix)[0]


def test_the_twin_agrees_with_numpy(both: Bundle) -> None:
    assert webgpu_graph(both).name == "portable.webgpu.onnx"
    assert_agrees(session_of_twin(both), both, TOLERANCES[both.manifest.dtype])


def test_the_portable_graph_on_the_cpu_agrees_with_numpy(both: Bundle) -> None:
    """A session on the CPU leaves activations unrounded."""
    tolerance = TOLERANCES[both.manifest.dtype]
    session, oracle = open_session(both.with_dialect("portable"), "cpu", threads=1), open_session(both, "numpy")
    for batch in batches():
        found, expected = sequential(session).forward(batch), sequential(oracle).forward(batch)
        for each in (session, oracle):
            each.free(0)
        assert found.topk_logprobs == pytest.approx(expected.topk_logprobs, abs=tolerance)


def test_graphs_have_no_other_operators(both: Bundle) -> None:
    model = onnx.load(both.with_dialect("portable").graph, load_external_data=False)
    onnx.checker.check_model(str(both.with_dialect("portable").graph), full_check=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 21)]
    assert violations_of_model(model, quantized=True) == []
    assert "DequantizeLinear" in {each.operator for each in violations_of_model(model)}
    matrices = webgpu_tensor_names(both.manifest)
    assert len(matrices) == 2 * 7 + 1
    twin = onnx.load(webgpu_graph(both), load_external_data=False)
    operators = [node.op_type for node in twin.graph.node]
    assert operators.count("MatMulNBits") == len(matrices)
    assert "DequantizeLinear" not in operators
    assert [value.name for value in twin.graph.input] == [value.name for value in model.graph.input]


def test_other_bundles_need_no_matrices(both: Bundle, tiny_portable: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    plain = Bundle.open(tiny_portable)
    assert (webgpu_graph(plain), webgpu_initializers(plain)) == (plain.graph, {})
    for function in (webgpu_graph, webgpu_initializers):
        with pytest.raises(BadInputError, match="only a graph in the standard dialect"):
            function(Bundle.open(tiny_bundle))
        with pytest.raises(BadInputError, match="only a graph in the standard dialect"):
            function(both.with_dialect("standard"))


@pytest.mark.parametrize("name", ["canvas_bundle", "canvas_bundle_int4"])
def test_the_twin_with_canvases_agrees_with_numpy(name: str, request: pytest.FixtureRequest) -> None:
    bundle = Bundle.open(request.getfixturevalue(name))
    manifest, sizes = bundle.manifest, bundle.manifest.dimensions
    assert webgpu_graph(bundle).name == "model.webgpu.onnx"
    operators = {node.op_type for node in onnx.load(webgpu_graph(bundle), load_external_data=False).graph.node}
    assert operators.isdisjoint({"Attention", "DequantizeLinear"})
    forward = BoundForward(OnnxRuntimeBinding(session_of_twin(bundle)), manifest, sizes.whole_model)
    session = HostSession(forward, "cpu", cache_shape_from_manifest(manifest), hidden_size=sizes.hidden_size)
    _, found = differences_of_canvases(session, manifest, [NumpyCanvasReference(bundle)], lambda *_: None, "")
    assert {output for _, output, _ in found} >= {"logits", "entropy", "drawn_ids"}
    assert max(difference.relative for *_, difference in found) < 1e-4
    session.close()


def test_scaled_attention_is_rejected() -> None:
    rows = [ir.Value(name=name, shape=ir.Shape([1, 2, 3, 4]), type=ir.TensorType(ir.DataType.FLOAT)) for name in "qkv"]
    mask = ir.Value(name="mask", shape=ir.Shape([1, 1, 3, 3]), type=ir.TensorType(ir.DataType.BOOL))
    node = ir.node("Attention", [*rows, mask])
    model = ir.Model(ir.Graph([*rows, mask], node.outputs, nodes=[node]), ir_version=10)
    with pytest.raises(ir.passes.PassError, match="must have a scale of 1"):
        PlainAttentionPass()(model)


def test_a_twin_of_another_graph_is_not_used(both: Bundle, tmp_path: Path) -> None:
    for record in both.manifest.files:
        (tmp_path / record.path).write_bytes(both.file(record.path).read_bytes())
    graph = tmp_path / "portable.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"\x00")
    changed = Bundle(tmp_path, both.manifest)
    assert webgpu_graph(changed) == graph
    assert webgpu_initializers(changed) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"form": "mapped"}, "for webgpu of the portable graph, packed"),
        (None, "a twin for webgpu in the form packed, but no quantized matrices"),
    ],
)
def test_bad_entries_are_rejected(both: Bundle, tmp_path: Path, changes: dict[str, str] | None, message: str) -> None:
    for record in both.manifest.files:
        (tmp_path / record.path).write_bytes(both.file(record.path).read_bytes())
    manifest = json.loads((both.path / MANIFEST_NAME).read_bytes())
    if changes is None:
        manifest |= {"quantization": None, "tensors": {}}
    twins = manifest["twins"]
    twins[:] = [twin | (changes or {}) for twin in twins if twin["provider"] == "webgpu"]
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(BadInputError) as caught:
        Bundle.open(tmp_path)
    assert message in f"{caught.value.received} {caught.value.expected}"


def test_a_full_temporary_folder_is_rejected(both: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(both.path / "absent"))
    with pytest.raises(BadInputError, match="cannot make a temporary file"):
        webgpu_initializers(both)


def test_int8_matrices_of_other_sizes_stay_dequantized(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")  # 48 inputs of mlp.down are no whole blocks
    bundle = bundle_from_checkpoint(
        checkpoint, tmp_path / "bundle", quantization=QuantizationChoice("int8"), dialects=("portable",)
    )
    operators = [node.op_type for node in onnx.load(webgpu_graph(bundle), load_external_data=False).graph.node]
    assert (operators.count("MatMulNBits"), operators.count("DequantizeLinear")) == (2 * 6 + 1, 2)
    assert "layers.0.mlp.down.weight" not in webgpu_initializers(bundle)
    tokens = 24
    session, oracle = forward_of(session_of_twin(bundle), bundle), open_session(bundle, "numpy")
    batch = random_batch(np.random.default_rng(0), [0], 2, 8, 8)
    batch = replace(batch, input_ids=batch.input_ids % tokens)
    expected: npt.NDArray[np.float32] = sequential(oracle).forward(batch).topk_logprobs
    assert _statistics(session, bundle, batch).topk_logprobs == pytest.approx(expected, abs=2e-4)


def test_quantized_experts_are_rejected(tmp_path: Path) -> None:
    checkpoint = Path(__file__).parents[2] / "reference" / "moe" / "llada2"
    with pytest.raises(BadInputError, match="for a model with experts") as caught:
        bundle_from_checkpoint(
            checkpoint, tmp_path / "b", quantization=QuantizationChoice("int8"), dialects=("portable",)
        )
    assert "--quantize-exclude '*.experts.*'" in caught.value.remedy
    choice = QuantizationChoice("int8", exclude=("*.experts.*",))
    bundle = bundle_from_checkpoint(checkpoint, tmp_path / "b", quantization=choice, dialects=("portable",))
    assert webgpu_initializers(bundle)
    assert session_of_twin(bundle)


@pytest.mark.webgpu
def test_the_twin_on_webgpu(both: Bundle, tmp_path: Path) -> None:
    """No node runs on the processor or writes a matrix as floats, and the results are numpy's."""
    from lopa.runtime.webgpu.webgpu_library import webgpu_device

    portable, tolerance = both.with_dialect("portable"), WEBGPU_TOLERANCES[both.manifest.dtype]
    session, oracle = open_session(portable, "webgpu:0"), open_session(both, "numpy")
    try:
        for batch in batches():
            found, expected = sequential(session).forward(batch), sequential(oracle).forward(batch)
            assert found.topk_logprobs == pytest.approx(expected.topk_logprobs, abs=tolerance)
            for each in (session, oracle):
                each.free(0)
    finally:
        session.close()
    on_device = session_of_twin(portable, webgpu_device("webgpu:0"), profile=tmp_path / "profile")
    assert_agrees(on_device, both, tolerance)
    events = [event["args"] for event in json.loads(Path(on_device.end_profiling()).read_bytes()) if "args" in event]
    providers = {event["provider"] for event in events if "provider" in event}
    operators = [event["op_name"] for event in events if "provider" in event]
    assert providers == {"WebGpuExecutionProvider"}
    assert "DequantizeLinear" not in operators
    assert operators.count("MatMulNBits") == 3 * len(webgpu_tensor_names(both.manifest))  # three forwards
