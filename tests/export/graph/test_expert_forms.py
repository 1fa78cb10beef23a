"""Expert layers in operators of the dialects, against float64."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import openvino
import pytest
from tests.export.graph.expert_graphs import (
    PREFIX,
    Sizes,
    WeightsOfLayer,
    expected_result,
    model_of_layer,
    quantized,
    random_inputs,
    random_weights,
    run,
    saved,
)
from tests.export.graph_runs import operators_when_optimized
from tests.processor import HAS_VNNI, NO_VNNI

from lopa.export.graph.expert_batched import BatchedLayer
from lopa.export.graph.expert_forms import join_experts, with_expert_operators
from lopa.export.graph.expert_layer import ExpertsPass
from lopa.export.graph.portable_lint import violations_of_model
from lopa.export.weights.plan import QuantizedKind
from lopa.runtime.bundle.manifest import Dialect
from lopa.runtime.openvino.openvino_library import openvino_core

KINDS = {
    "float32": Sizes(),
    "float16": Sizes(dtype="float16"),
    "int8": quantized("int8"),
    "int4": quantized("int4"),
    "fp8": quantized("fp8"),
    "int8 in float16": Sizes(dtype="float16", quantized="int8"),
    "int4 in float16": Sizes(dtype="float16", quantized="int4"),
    "fp8 in float16": Sizes(dtype="float16", quantized="fp8"),
}
SHAPES = {
    "one row": (Sizes(), (1, 1)),
    "many rows": (Sizes(), (2, 150)),
    "one of two experts": (Sizes(experts=2, per_token=1), (1, 9)),
    "two of two experts": (Sizes(experts=2, per_token=2), (1, 9)),
    "one of one expert": (Sizes(experts=1, per_token=1), (2, 3)),
    "many experts": (Sizes(experts=70, per_token=8), (1, 5)),
}
FORMS = ["standard", "portable", "batched"]


def _in_form(weights: WeightsOfLayer, form: str) -> ir.Model:
    if form == "batched":
        return ExpertsPass(BatchedLayer)(model_of_layer(weights)).model
    dialect: Dialect = "standard" if form == "standard" else "portable"
    return with_expert_operators(model_of_layer(weights, 23 if form == "standard" else 17), dialect)


def _assert_close(found: np.ndarray, expected: np.ndarray, sizes: Sizes) -> None:
    assert found.dtype == np.dtype(sizes.dtype)
    # A rounded inner value near a tie may become the next number.
    tolerance = (1e-2 if sizes.quantized in ("int8", "fp8") else 1e-5) if sizes.dtype == "float32" else 1e-2
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("optimize", [False, True], ids=["plain", "optimized"])
def test_types_of_matrices(sizes: Sizes, form: str, tmp_path: Path, *, optimize: bool) -> None:
    weights, inputs = random_weights(sizes, tmp_path), random_inputs(sizes, (2, 7))
    if form == "portable" and sizes.quantized:
        with pytest.raises(ir.passes.PassError) as raised:
            _in_form(weights, form)
        assert "not portable" in str(raised.value.__cause__ or raised.value)
        return
    model = _in_form(weights, form)
    _assert_close(run(model, weights, inputs, optimize=optimize), expected_result(weights, inputs), sizes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("sizes", "shape"), SHAPES.values(), ids=SHAPES)
def test_numbers_of_rows_and_experts(sizes: Sizes, shape: tuple[int, int], form: str, tmp_path: Path) -> None:
    weights, inputs = random_weights(sizes, tmp_path), random_inputs(sizes, shape)
    _assert_close(run(_in_form(weights, form), weights, inputs), expected_result(weights, inputs), sizes)


@pytest.mark.parametrize("kind", [None, "int8", "int4"])
def test_onnx_runtime_fuses_every_product(kind: QuantizedKind | None, tmp_path: Path) -> None:
    weights = random_weights(quantized(kind), tmp_path)
    path = saved(_in_form(weights, "standard"), weights)
    onnx.checker.check_model(str(path), full_check=True)
    fused = {None: "MatMul", "int8": "MatMulIntegerToFloat", "int4": "MatMulNBits"}[kind]
    operators = operators_when_optimized(path, tmp_path)
    assert operators[fused] == 3 * 6
    assert operators["DequantizeLinear"] == 0
    assert kind is None or operators["MatMul"] == 0
    assert operators["QuantizeLinear"] == (2 if kind == "int8" else 0)  # rows are rounded once per row and layer


@pytest.mark.parametrize("sizes", KINDS.values(), ids=KINDS)
def test_joining_restores_the_node_and_its_records(sizes: Sizes, tmp_path: Path) -> None:
    weights = random_weights(sizes, tmp_path)
    model = ir.from_proto(ir.to_proto(_in_form(weights, "standard")))
    assert join_experts(model)
    (node,) = model.graph
    expected = model_of_layer(weights)
    (original,) = expected.graph
    assert (node.domain, node.op_type, node.name) == (original.domain, original.op_type, original.name)
    assert [value.name for value in node.inputs] == [value.name for value in original.inputs]
    assert model.graph.outputs[0].name == "result"
    for tensor in weights.tensors:
        found = model.graph.initializers[tensor.name].const_value
        assert isinstance(found, ir.ExternalTensor)
        assert (found.offset, found.length, found.dtype) == (tensor.offset, tensor.length, tensor.dtype)
        assert found.shape == tensor.shape
    assert not join_experts(ir.Model(ir.Graph([], [], nodes=[]), ir_version=11))


def test_portable_form_keeps_the_rules_and_the_file(tmp_path: Path) -> None:
    weights = random_weights(Sizes(), tmp_path)
    model = _in_form(weights, "portable")
    assert violations_of_model(ir.to_proto(model)) == []
    inner, hidden = 32, 64
    down = model.graph.initializers[f"{PREFIX}.down.weight"].const_value
    assert down is not None
    assert down.shape.numpy() == (6 * inner, hidden)
    assert Counter(node.op_type for node in model.graph)["MatMul"] == 2 * 6 + 1


@pytest.mark.parametrize("form", ["standard", "portable"])
@pytest.mark.parametrize("sizes", [Sizes(), quantized("int8"), quantized("int4")], ids=["float32", "int8", "int4"])
def test_openvino(sizes: Sizes, form: str, tmp_path: Path) -> None:
    if form == "portable" and sizes.quantized:
        pytest.skip("the portable dialect has no quantized experts")
    if sizes.quantized == "int8" and not HAS_VNNI:
        pytest.skip(NO_VNNI)
    weights = random_weights(sizes, tmp_path)
    options = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "INFERENCE_NUM_THREADS": 1}
    compiled = openvino_core(openvino).compile_model(saved(_in_form(weights, form), weights), "CPU", options)
    for shape in ((1, 1), (2, 7)):
        inputs = random_inputs(sizes, shape)
        found = next(iter(compiled(inputs).values()))
        _assert_close(found, expected_result(weights, inputs), sizes)


def test_matrices_outside_of_the_file_are_an_error(tmp_path: Path) -> None:
    model = model_of_layer(random_weights(Sizes(), tmp_path))
    gate = model.graph.initializers[f"{PREFIX}.gate.weight"]
    gate.const_value = ir.tensor(np.zeros((6, 64, 32), np.float32), name=gate.name)
    with pytest.raises(ir.passes.PassError) as raised:
        with_expert_operators(model, "standard")
    assert "outside of the weights file" in str(raised.value.__cause__ or raised.value)
