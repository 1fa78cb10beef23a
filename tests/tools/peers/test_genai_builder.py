"""Quantization of one matrix at a time gives the model that the quantizer makes of the whole graph."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from tools.peers.genai_builder import is_product, model_of_node, replace_node


def graph_with_three_products() -> onnx.ModelProto:
    """Return x @ a @ b + x @ c, of which the last product is an output and `x @ x` has no constant."""
    rng = np.random.default_rng(0)
    matrices = [numpy_helper.from_array(rng.standard_normal((64, 64), np.float32), name) for name in "abc"]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["xa"], "first"),
        helper.make_node("MatMul", ["xa", "b"], ["xab"], "second"),
        helper.make_node("Relu", ["xab"], ["y"], "relu"),
        helper.make_node("MatMul", ["xa", "xab"], ["z"], "without constant"),
        helper.make_node("MatMul", ["y", "c"], ["logits"], "head"),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in ("logits", "z")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(nodes, "graph", [x], outputs, matrices), opset_imports=opsets)


def quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    quantizer = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    found: onnx.ModelProto = quantizer.model.model
    return found


def constants(model: onnx.ModelProto) -> dict[str, bytes]:
    return {each.name: numpy_helper.to_array(each).tobytes() for each in model.graph.initializer}


def nodes(model: onnx.ModelProto) -> list[tuple[object, ...]]:
    return [
        (node.op_type, node.domain, *node.input, *node.output, *sorted(map(str, node.attribute)))
        for node in model.graph.node
    ]


def test_matrices_one_by_one_equal_the_whole_graph() -> None:
    whole = ir.from_proto(graph_with_three_products())
    products = [node for node in whole.graph if is_product(node)]
    assert [node.name for node in products] == ["first", "second", "head"]
    for node in products:
        replace_node(whole.graph, node, ir.from_proto(quantized(ir.to_proto(model_of_node(node, whole)))))
    found, expected = ir.to_proto(whole), quantized(graph_with_three_products())
    assert constants(found) == constants(expected)
    assert "MatMulNBits" in {node.op_type for node in found.graph.node}
    assert nodes(found) == nodes(expected)
    assert [each.name for each in found.graph.output] == ["logits", "z"]
    onnx.checker.check_model(found)
