"""Graphs of quantized bundles: operators, ONNX Runtime's optimizations, and results."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from tests.export.checkpoints import HALF_OF_TESTS, small_checkpoint
from tests.export.graph.test_torch_graph import ALLOWED
from tests.export.graph_runs import operators_when_optimized

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.graph.quantize_pass import QuantizedMatricesPass, QuantizedMatrix
from lopa.export.verify.session_check import NumpyReference, report_from_session
from lopa.export.weights.plan import QuantizedKind
from lopa.export.weights.quantization import QuantizationChoice
from lopa.export.weights.quantize_tensor import int4_from_values, int8_from_values
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.weights import values_from_integers
from lopa.runtime.sessions.session import open_session

RNG = np.random.default_rng(77)
NEW = {"int8": {"Abs", "DequantizeLinear", "Max", "QuantizeLinear", "ReduceMax"}, "int4": {"DequantizeLinear"}}
FUSED = {"int8": "MatMulIntegerToFloat", "int4": "MatMulNBits"}
KINDS: tuple[QuantizedKind, ...] = ("int8", "int4")


def test_standard_operators_only(tiny_quantized: Path) -> None:
    bundle = Bundle.open(tiny_quantized)
    model = onnx.load(bundle.graph, load_external_data=False)
    assert bundle.manifest.quantization is not None
    assert {node.domain for node in model.graph.node} == {""}
    assert {node.op_type for node in model.graph.node} <= ALLOWED | NEW[bundle.manifest.quantization.kind]
    onnx.checker.check_model(str(bundle.graph))


def test_onnx_runtime_computes_every_product_with_integers(tiny_quantized: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(tiny_quantized)
    assert bundle.manifest.quantization is not None
    operators = operators_when_optimized(bundle.graph, tmp_path)
    assert operators[FUSED[bundle.manifest.quantization.kind]] == 36
    assert operators["DequantizeLinear"] == operators["MatMul"] == 0
    # q, k and v share their rounded rows, as do gate and up: four roundings per layer, and one for the head.
    assert operators["QuantizeLinear"] == (21 if bundle.manifest.quantization.kind == "int8" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_float16_keeps_the_fused_products(tmp_path: Path, kind: QuantizedKind) -> None:
    checkpoint = small_checkpoint(tmp_path / "c", changes=HALF_OF_TESTS)
    choice = QuantizationChoice(kind, exclude=("layers.0.*",))
    bundle = bundle_from_checkpoint(checkpoint, tmp_path / "b", dtype="float16", quantization=choice, with_logits=True)
    operators = operators_when_optimized(bundle.graph, tmp_path)
    assert (operators[FUSED[kind]], operators["MatMul"]) == (15, 7)
    session = open_session(bundle, "cpu", threads=1)
    assert report_from_session(session, bundle.manifest, [NumpyReference(bundle)]).ok
    session.close()


# This graph has a single product.


def _product_model(
    kind: QuantizedKind, values: np.ndarray, dtype: ir.DataType, uses: int
) -> tuple[ir.Model, np.ndarray]:
    """Return a graph of `uses` products with one matrix before the pass, and the dequantized matrix after it."""
    inputs, outputs = values.shape
    x = ir.Value(name="x", shape=ir.Shape(["rows", inputs]), type=ir.TensorType(dtype))
    matrix = ir.Value(name="w", shape=ir.Shape(values.shape), type=ir.TensorType(dtype))
    nodes = [ir.node("MatMul", [x, matrix], name=f"product{i}") for i in range(uses)]
    for i, node in enumerate(nodes):
        node.outputs[0].name, node.outputs[0].type = f"y{i}", ir.TensorType(dtype)
        node.outputs[0].shape = ir.Shape(["rows", outputs])
    graph = ir.Graph(
        [x], [node.outputs[0] for node in nodes], nodes=nodes, initializers=[matrix], opset_imports={"": 23}
    )
    weights = torch.from_numpy(values)
    integers, scales = int8_from_values(weights) if kind == "int8" else int4_from_values(weights, "float32")
    stored = ir.tensor(integers.numpy(), dtype=ir.DataType.INT8 if kind == "int8" else ir.DataType.INT4, name="w")
    scale_type = np.float16 if dtype == ir.DataType.FLOAT16 and kind == "int4" else np.float32
    scale = ir.tensor(scales.numpy().astype(scale_type), name="w_scale")
    model = QuantizedMatricesPass({"w": QuantizedMatrix(stored, scale)})(ir.Model(graph, ir_version=11)).model
    return model, values_from_integers(integers.numpy(), scales.numpy())


def _run(model: ir.Model, x: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    # Without optimizations ONNX Runtime computes exactly the operators.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options).run(None, {"x": x}))


def test_int8_rows_are_rounded_by_their_own_scale() -> None:
    values = RNG.standard_normal((64, 24)).astype(np.float32)
    x = (RNG.standard_normal((7, 64)) * np.logspace(-6, 4, 7)[:, None]).astype(np.float32)
    x[3] = 0
    model, stands_for = _product_model("int8", values, ir.DataType.FLOAT, uses=2)
    first, second = _run(model, x)
    scales = np.maximum(np.abs(x.astype(np.float64)).max(axis=1, keepdims=True), 1e-30) / 127
    expected = (np.rint(x / scales) * scales) @ stands_for.astype(np.float64)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(
        first, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(axis=1, keepdims=True).min()
    )
    assert not first[3].any()
    assert [node.op_type for node in model.graph].count("QuantizeLinear") == 1


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16])
def test_int4_is_the_product_with_dequantized_integers(dtype: ir.DataType) -> None:
    values = RNG.standard_normal((96, 10)).astype(np.float32)
    x = RNG.standard_normal((6, 96)).astype(dtype.numpy())
    model, stands_for = _product_model("int4", values, dtype, uses=1)
    tolerance = 1e-5 if dtype == ir.DataType.FLOAT else 1e-2
    np.testing.assert_allclose(
        _run(model, x)[0], x.astype(np.float64) @ stands_for, rtol=tolerance, atol=20 * tolerance
    )


def test_float16_rows_are_rounded_in_float32() -> None:
    values = RNG.standard_normal((64, 24)).astype(np.float32)
    model, stands_for = _product_model("int8", values, ir.DataType.FLOAT16, uses=1)
    x = (RNG.standard_normal((4, 64)) * np.array([[1e-6], [1.0], [30.0], [3e3]])).astype(np.float16)
    (found,) = _run(model, x)
    assert found.dtype == np.float16
    exact = x.astype(np.float64) @ stands_for
    errors = np.abs(found - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert (errors[1:] < 2e-2).all()


def _two_uses(kind: str) -> ir.Model:
    x = ir.Value(name="x", shape=ir.Shape([2, 4]), type=ir.TensorType(ir.DataType.FLOAT))
    matrix = ir.Value(name="w", shape=ir.Shape([4, 4]), type=ir.TensorType(ir.DataType.FLOAT))
    other = ir.node("Add", [x, matrix]) if kind == "added" else ir.node("MatMul", [matrix, x])
    nodes = [ir.node("MatMul", [x, matrix]), other]
    graph = ir.Graph(
        [x], [node.outputs[0] for node in nodes], nodes=nodes, initializers=[matrix], opset_imports={"": 23}
    )
    return ir.Model(graph, ir_version=11)


@pytest.mark.parametrize("kind", ["added", "first factor"])
def test_a_matrix_with_another_use_is_rejected(kind: str) -> None:
    replacement = QuantizedMatrix(ir.tensor(np.ones((4, 4), np.int8), name="w"), ir.tensor(np.ones(4, np.float32)))
    with pytest.raises(ir.passes.PreconditionError, match="must only be the second factor"):
        QuantizedMatricesPass({"w": replacement})(_two_uses(kind))


def test_an_unknown_matrix_is_rejected() -> None:
    replacement = QuantizedMatrix(ir.tensor(np.ones((4, 4), np.int8), name="v"), ir.tensor(np.ones(4, np.float32)))
    with pytest.raises(ir.passes.PreconditionError, match="no initializer v"):
        QuantizedMatricesPass({"v": replacement})(_two_uses("added"))
