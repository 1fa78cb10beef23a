"""8-bit products: their results on ONNX Runtime."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from lopa.export.tensorrt.products import Products, magnitudes_of_columns, quantize_products
from lopa.runtime.bundle.manifest import TensorRecord
from lopa.runtime.contract import float32_from_stored, stored_dtype, stored_from_float32

Array = npt.NDArray[np.float32]
TYPES = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
ROWS, INPUTS, OUTPUTS = 7, 48, 24


def _numbers() -> tuple[Array, Array, Array]:
    """Return rows and columns of very different magnitudes, including a zero row and a zero column."""
    random = np.random.default_rng(11)
    x = random.normal(0, 1, (ROWS, INPUTS)) * 10.0 ** random.uniform(-3, 3, (ROWS, 1))
    first, second = (
        random.normal(0, 1, (INPUTS, OUTPUTS)) * 10.0 ** random.uniform(-2, 2, (1, OUTPUTS)) for _ in range(2)
    )
    x[3] = 0
    first[:, 5] = 0
    return x.astype(np.float32), first.astype(np.float32), second.astype(np.float32)


def _model(dtype: str, weights: dict[str, Array]) -> onnx.ModelProto:
    """Return two products with one factor, and a third product without a weight."""
    kind = TYPES[dtype]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "first"], ["y"], name="one"),
        onnx.helper.make_node("MatMul", ["x", "second"], ["z"], name="two"),
        onnx.helper.make_node("Transpose", ["z"], ["t"], name="turned", perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["y", "t"], ["p"], name="three"),
    ]
    initializers = [
        onnx.helper.make_tensor(
            name, kind, values.shape, stored_from_float32(values, stored_dtype(dtype)).tobytes(), raw=True
        )
        for name, values in weights.items()
    ]
    shapes = {"y": ["n", OUTPUTS], "z": ["n", OUTPUTS], "p": ["n", "n"]}
    outputs = [onnx.helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]
    graph = onnx.helper.make_graph(
        nodes, "g", [onnx.helper.make_tensor_value_info("x", kind, ["n", INPUTS])], outputs, initializers
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)


def _quantized(dtype: str, products: Products, weights: dict[str, Array]) -> onnx.ModelProto:
    model = _model(dtype, weights)
    records = {
        name: TensorRecord(dtype=dtype, shape=[INPUTS, OUTPUTS], offset=0, length=0)  # type: ignore[arg-type]
        for name in weights
    }
    quantize_products(model, products, records, lambda name: np.abs(weights[name]).max(axis=0))
    return model


def _run(model: onnx.ModelProto, x: Array) -> list[Array]:
    """Run without ONNX Runtime's own fusions, which it lacks for fp8."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(each, np.float32) for each in session.run(["y", "z", "p"], {"x": x})]


def _expected_int8(x: Array, weight: Array) -> Array:
    rows = np.maximum(np.abs(x).max(1, keepdims=True), 1e-30) * np.float32(1 / 127)
    columns = np.maximum(np.abs(weight).max(0), 1e-30) / np.float32(127)
    product = np.rint(x / rows).astype(np.float64) @ np.rint(weight / columns).astype(np.float64)
    return (product * columns * rows).astype(np.float32)


def test_int8_is_rounding_to_127_steps() -> None:
    x, first, second = _numbers()
    y, z, _ = _run(_quantized("float32", "int8", {"first": first, "second": second}), x)
    np.testing.assert_allclose(y, _expected_int8(x, first), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(z, _expected_int8(x, second), rtol=1e-4, atol=1e-6)
    assert np.abs(y).max() > 0
    assert (y[3] == 0).all()
    assert (y[:, 5] == 0).all()


@pytest.mark.parametrize(("dtype", "products", "error"), [("float16", "int8", 0.02), ("float32", "fp8", 0.06)])
def test_rows_and_columns_keep_their_own_magnitudes(dtype: str, products: Products, error: float) -> None:
    """Compare errors relative to each row's length. fp8 has one scale per weight, so its weights have one magnitude."""
    x, first, second = _numbers()
    if products == "fp8":
        first, second = (each / np.maximum(np.abs(each).max(0), 1e-30) for each in (first, second))
    if dtype == "float16":
        x = x.astype(np.float16)
    weights = {"first": first.astype(np.float32), "second": second.astype(np.float32)}
    found = _run(_quantized(dtype, products, weights), x)
    plain = _run(_model(dtype, weights), x)
    for ours, theirs in zip(found[:2], plain[:2], strict=True):
        length = np.linalg.norm(theirs, axis=1)
        assert (np.linalg.norm(ours - theirs, axis=1) <= error * length).all()
        assert (ours != theirs).any()


def test_a_product_of_activations_stays_as_it_is() -> None:
    x, first, second = _numbers()
    model = _quantized("float32", "int8", {"first": first, "second": second})
    y, z, p = _run(model, x)
    np.testing.assert_allclose(p, y @ z.T, rtol=1e-4, atol=1e-3)
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("MatMul") == 3
    assert operators.count("QuantizeLinear") == 3  # two weights, and the factor that they share


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_weight_is_rounded_and_widened_by_the_same_scales(dtype: str) -> None:
    """Check also that the scale of a zero column is a normal number of the weight's type."""
    _, first, second = _numbers()
    model = _quantized(dtype, "int8", {"first": first, "second": second})
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    exact = np.abs(first).max(axis=0) / 127
    scales, wide = known["first/scale"], known["first/scale_float32"]
    np.testing.assert_array_equal(scales.astype(np.float32), wide)
    large = exact > 1e-4
    np.testing.assert_allclose(wide[large], exact[large], rtol={"float32": 0, "float16": 1e-3, "bfloat16": 1e-2}[dtype])
    assert large.sum() > OUTPUTS // 2
    assert (wide >= (2.0**-14 if dtype == "float16" else 1e-33)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_magnitudes_of_a_stored_weight(tmp_path: Path, dtype: str) -> None:
    """Check more rows than are widened at a time, with a column's largest magnitude negative and in the last rows."""
    values = np.random.default_rng(2).uniform(-1, 1, (2500, 3)).astype(np.float32)
    values[2400] = [-3, 2, -5]
    stored = stored_from_float32(values, stored_dtype(dtype))
    stored.tofile(tmp_path / "w")
    mapped = np.memmap(tmp_path / "w", stored_dtype(dtype), "r", 0, (2500, 3))
    np.testing.assert_array_equal(magnitudes_of_columns(mapped, float32_from_stored), [3, 2, 5])
