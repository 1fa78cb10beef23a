"""The check names what TensorRT's parser rejects before a build, and accepts all exported graphs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.export.tensorrt.one_node import BF16, F32, I64, attention_model, model_of_node
from tests.export.tensorrt.parser_controls import CONTROLS, INT8

from lopa.export.tensorrt.parser_graph import model_for_parser
from lopa.export.tensorrt.parser_lint import check_parser_accepts, refusals_of_model, tensorrt_operators
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError


@pytest.mark.parametrize("case", [name for name, control in CONTROLS.items() if control.rule is not None])
def test_nodes_that_the_parser_rejects_are_named(case: str) -> None:
    control = CONTROLS[case]
    found = refusals_of_model(control.make(), tensorrt_operators())
    assert control.rule in {each.rule for each in found}
    assert control.ours in "; ".join(map(str, found))


@pytest.mark.parametrize("case", [name for name, control in CONTROLS.items() if control.rule is None])
def test_nodes_that_the_parser_accepts_are_accepted(case: str) -> None:
    assert refusals_of_model(CONTROLS[case].make(), tensorrt_operators()) == []


@pytest.mark.parametrize(
    ("model", "ours"),
    [
        (attention_model(softmax_precision=1), "attribute softmax_precision"),
        (attention_model(qk_matmul_output_mode=1), "attribute qk_matmul_output_mode"),
        (model_of_node("Unsqueeze", {"x": (F32, [2, 2]), "axes": (I64, [1])}), "its axes axes are computed"),
        (model_of_node("CumSum", {"x": (F32, [2, 2]), "axis": (I64, [])}), "its axes axis are computed"),
        (model_of_node("DequantizeLinear", {"x": (INT8, [2]), "s": (F32, [2])}, axis=0), "its scale s is computed"),
        (model_of_node("QuantizeLinear", {"x": (F32, [2])}, {"s": np.float32(1)}), "y is converted to UINT8"),
    ],
)
def test_other_nodes_with_these_rules(model: onnx.ModelProto, ours: str) -> None:
    assert ours in "; ".join(map(str, refusals_of_model(model, tensorrt_operators())))


def test_an_error_names_node_operator_opset_type_axes_and_remedy() -> None:
    (refusal,) = refusals_of_model(attention_model(softcap=2.0), tensorrt_operators())
    assert str(refusal) == "Attention node (opset 23, FLOAT16, 4 axes): has the attribute softcap; remove it"
    with pytest.raises(BadInputError, match=r"TensorRT's parser rejects .*model\.onnx at 1 places: Attention node"):
        check_parser_accepts(attention_model(softcap=2.0), "model.onnx")


def test_exported_graphs_are_accepted(tiny_bundle_logits: Path) -> None:
    model = model_for_parser(Bundle.open(tiny_bundle_logits))
    assert refusals_of_model(model, tensorrt_operators()) == []
    assert {node.op_type for node in model.graph.node} >= {"Attention", "RMSNormalization", "RotaryEmbedding", "TopK"}


def test_graphs_of_16_bits_are_accepted(tiny_bfloat16: Path) -> None:
    model = model_for_parser(Bundle.open(tiny_bfloat16))
    assert refusals_of_model(model, tensorrt_operators()) == []
    assert BF16 in {tensor.data_type for tensor in model.graph.initializer}


def test_functions_are_checked_by_their_bodies(tiny_plugins: Path) -> None:
    model = model_for_parser(Bundle.open(tiny_plugins))
    inside = [node for function in model.functions for node in function.node if node.op_type == "Attention"]
    assert inside
    assert all(any(each.name == "TRT_decomposable" for each in node.attribute) for node in inside)
    assert refusals_of_model(model, tensorrt_operators()) == []
    inside[0].op_type = "MatMulInteger"
    assert {each.rule for each in refusals_of_model(model, tensorrt_operators())} >= {"operator"}


def test_converted_quantized_graphs_are_accepted(tiny_quantized: Path) -> None:
    bundle = Bundle.open(tiny_quantized)
    check_parser_accepts(model_for_parser(bundle), "model.onnx")
    assert bundle.manifest.quantization is not None
    plain = refusals_of_model(onnx.load(bundle.graph, load_external_data=False), tensorrt_operators())
    expected = {"type", "output type", "zero point"} if bundle.manifest.quantization.kind == "int8" else set()
    assert {each.rule for each in plain} == expected | {"attention"}


def test_only_attention_and_zero_points_are_changed_and_the_file_is_not(tiny_quantized: Path) -> None:
    bundle = Bundle.open(tiny_quantized)
    before = bundle.graph.read_bytes()
    changed, plain = model_for_parser(bundle), onnx.load(bundle.graph, load_external_data=False)
    assert bundle.graph.read_bytes() == before
    for node in changed.graph.node:
        decomposable = [each for each in node.attribute if each.name == "TRT_decomposable"]
        assert [each.i for each in decomposable] == ([1] if node.op_type == "Attention" else [])
        for each in decomposable:
            node.attribute.remove(each)
    assert list(changed.graph.node) == list(plain.graph.node)
    different = [
        new.name
        for new, old in zip(changed.graph.initializer, plain.graph.initializer, strict=True)
        if new.SerializeToString() != old.SerializeToString()
    ]
    assert different in ([], ["quantize.zero"])
