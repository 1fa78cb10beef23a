"""Rounded rows for CPUs: the same integers and bit-equal results in fewer operators."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from tests.export.checkpoints import HALF_OF_TESTS, small_checkpoint
from tests.export.graph_runs import operators_when_optimized, statistics_of

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.cpu_graph import twin as twins
from lopa.export.cpu_graph.rounded_rows import RoundedRowsPass, RowScalesPass
from lopa.export.graph.quantize_pass import QuantizedMatricesPass, QuantizedMatrix
from lopa.export.weights.quantization import QuantizationChoice
from lopa.export.weights.quantize_tensor import int8_from_values
from lopa.runtime.bundle import Bundle

RNG = np.random.default_rng(1616)
INPUTS, OUTPUTS = 96, 40


def _rounded_products(*, dtype: ir.DataType = ir.DataType.FLOAT, dims: tuple[str | None, ...] = ("n", "w")) -> ir.Model:
    """Return a graph of four int8 products. Two share x [*dims, INPUTS], the others take a gate and a residual sum."""
    names = ("a", "b", "c", "d")
    type_ = ir.TensorType(dtype)
    weights = {f"w{name}": RNG.standard_normal((INPUTS, INPUTS)).astype(np.float32) for name in names}
    matrices = [ir.Value(name=name, shape=ir.Shape([INPUTS, INPUTS]), type=type_) for name in weights]
    shape = ir.Shape([*dims, INPUTS])
    x = ir.Value(name="x", shape=shape, type=type_)
    first, second = (ir.node("MatMul", [x, matrix], name=matrix.name) for matrix in matrices[:2])
    gated = ir.node("Mul", [first.outputs[0], second.outputs[0]], name="gated")
    third = ir.node("MatMul", [gated.outputs[0], matrices[2]], name="third")
    total = ir.node("Add", [x, third.outputs[0]], name="total")
    fourth = ir.node("MatMul", [total.outputs[0], matrices[3]], name="fourth")
    nodes = [first, second, gated, third, total, fourth]
    for node in nodes:
        node.outputs[0].name, node.outputs[0].shape, node.outputs[0].type = f"{node.name}_out", shape, type_
    graph = ir.Graph([x], [fourth.outputs[0]], nodes=nodes, initializers=matrices, opset_imports={"": 23})
    quantized = {}
    for name, values in weights.items():
        integers, scales = int8_from_values(torch.from_numpy(values))
        quantized[name] = QuantizedMatrix(
            ir.tensor(integers.numpy(), name=name), ir.tensor(scales.numpy(), name=f"{name}_scale")
        )
    return QuantizedMatricesPass(quantized)(ir.Model(graph, ir_version=11)).model


def _run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def _operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def _hard_rows() -> np.ndarray:
    """Return rows [2, 8, INPUTS] of every magnitude: all zero, all negative, subnormal, infinite, and with a NaN."""
    x = RNG.standard_normal((2, 8, INPUTS)) * np.logspace(-6, 4, 8)[:, None]
    x[1, 0], x[1, 1] = 0, -np.abs(x[1, 1])
    x[1, 2] *= 1e-40
    x[1, 3, 7], x[1, 4, 7], x[1, 5, 0] = np.inf, -np.inf, np.nan
    return x.astype(np.float32)


def _assert_same(after: np.ndarray, before: np.ndarray) -> None:
    """Check the results of _hard_rows: equal, or not finite where an infinity or a NaN is in the row."""
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1, [0, 1, 2, 6, 7]], before[1, [0, 1, 2, 6, 7]])
    assert np.isfinite(after).all(axis=2).tolist() == [[True] * 8, [True] * 3 + [False] * 3 + [True] * 2]
    assert np.isnan(after[1, 5]).all()


@pytest.mark.parametrize("dims", [("n", "w"), (None, None), (2, 8)])
def test_integers_and_scales_are_the_same(dims: tuple[str | None, ...]) -> None:
    model = _rounded_products(dims=dims)
    x = _hard_rows()
    before = _run(model, x)
    assert RoundedRowsPass()(model).modified
    _assert_same(_run(model, x), before)
    operators = _operators(model)
    assert operators["MatMulIntegerToFloat"] == 4
    assert not {"Abs", "Div", "DequantizeLinear", "MatMul"} & set(operators)
    assert operators["ConstantOfShape"] == (3 if None in dims else 1)


def test_weights_give_the_length_of_rows_of_unknown_shape() -> None:
    model = _rounded_products()
    x = _hard_rows()
    before = _run(model, x)
    for value in (model.graph.inputs[0], *(node.outputs[0] for node in model.graph)):
        value.shape = None
    assert RoundedRowsPass()(model).modified
    _assert_same(_run(model, x), before)
    assert _operators(model)["MatMulIntegerToFloat"] == 4


def test_float16_rows_are_the_same() -> None:
    model = _rounded_products(dtype=ir.DataType.FLOAT16)
    x = RNG.standard_normal((2, 8, INPUTS)).astype(np.float16)
    before = _run(model, x)
    assert RoundedRowsPass()(model).modified
    np.testing.assert_array_equal(_run(model, x), before)
    assert _operators(model)["MatMulIntegerToFloat"] == 4


def test_a_sum_absorbs_the_scales_and_is_unchanged() -> None:
    model = _rounded_products()
    RoundedRowsPass()(model)
    x = _hard_rows()
    before = _run(model, x)
    assert RowScalesPass()(model).modified
    np.testing.assert_array_equal(_run(model, x), before)
    operators = _operators(model)
    assert (operators["GatedAdd"], operators["Add"]) == (1, 0)


def test_a_sum_with_another_shape_is_unchanged() -> None:
    """Add a bias, which GatedAdd does not broadcast."""
    model = _rounded_products()
    RoundedRowsPass()(model)
    total = next(node for node in model.graph if node.name == "total")
    bias = ir.Value(name="bias", shape=ir.Shape([INPUTS]), type=ir.TensorType(ir.DataType.FLOAT))
    bias.const_value = ir.tensor(RNG.standard_normal(INPUTS).astype(np.float32), name="bias")
    model.graph.initializers.add(bias)
    total.replace_input_with(0, bias)
    assert not RowScalesPass()(model).modified
    assert _operators(model)["Add"] == 1


@pytest.mark.parametrize("kept", [RoundedRowsPass(), RowScalesPass()])
def test_a_float_graph_is_unchanged(tiny_bundle: Path, kept: ir.passes.InPlacePass) -> None:
    model = ir.from_proto(onnx.load(Bundle.open(tiny_bundle).graph, load_external_data=False))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not kept(model).modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


# Tests of complete bundles


@pytest.mark.parametrize("tiny_quantized", ["int8"], indirect=True)
def test_every_product_of_the_tiny_model(tiny_quantized: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(tiny_quantized)
    graph = bundle.twin("cpu")
    assert graph is not None
    operators = operators_when_optimized(graph, tmp_path)
    # Queries of the last layer exist for sampled positions only, rounded separately. Its sums have unknown shapes.
    assert (operators["MatMulIntegerToFloat"], operators["QuantizeLinear"], operators["GatedAdd"]) == (36, 22, 8)
    assert operators["MatMul"] == operators["DequantizeLinear"] == operators["Abs"] == 0


@pytest.mark.parametrize("device", ["cpu", "cpu+cpu"])
def test_float16_with_layers_left_out_and_stages(tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "cpu_passes", lambda *_: [RoundedRowsPass(), RowScalesPass()])
    checkpoint = small_checkpoint(tmp_path / "c", changes=HALF_OF_TESTS)
    choice = QuantizationChoice("int8", exclude=("layers.0.*",))
    bundle = bundle_from_checkpoint(checkpoint, tmp_path / "b", dtype="float16", quantization=choice, stages=2)
    twin, plain = statistics_of(bundle, device), statistics_of(bundle.with_twins(), device)
    np.testing.assert_array_equal(twin.topk_ids, plain.topk_ids)
    np.testing.assert_allclose(twin.topk_logprobs, plain.topk_logprobs, atol=1e-4)
