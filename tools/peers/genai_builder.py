"""Run ONNX Runtime GenAI's model builder with one matrix in memory at a time.

Usage: python -m tools.peers.genai_builder MODELS OPTION..

MODELS is the folder onnxruntime_genai/models of the installed package. The options are those of its builder.py. The
builder holds all matrices in float32 while it quantizes, 28 GB for a 7B model. Here its own quantization is called with
a graph of one matrix after another. The resulting model is the same.
"""

import gc
import runpy
import sys
from typing import Any

import onnx_ir as ir


def main(models: str, options: list[str]) -> None:
    """Run the builder in the folder `models`."""
    sys.path.insert(0, models)
    from builders import base  # type: ignore[import-not-found]

    quantize = base.Model.to_nbits

    def quantize_by_matrix(builder: Any) -> ir.Model:
        whole: ir.Model = builder.model
        for node in [node for node in whole.graph if is_product(node)]:
            builder.model = model_of_node(node, whole)
            replace_node(whole.graph, node, quantize(builder))
            gc.collect()  # graphs refer to themselves and to the matrix
        builder.model = whole
        return whole

    base.Model.to_nbits = quantize_by_matrix
    sys.argv = ["builder.py", *options]
    runpy.run_path(f"{models}/builder.py", run_name="__main__")


def is_product(node: ir.Node) -> bool:
    """Return True for a product with a constant matrix."""
    weight = node.inputs[1] if len(node.inputs) == 2 else None
    return node.op_type == "MatMul" and weight is not None and weight.const_value is not None


def model_of_node(node: ir.Node, whole: ir.Model) -> ir.Model:
    """Return a model with a copy of `node` alone, with the same names."""
    left, weight = node.inputs
    assert left is not None
    assert weight is not None
    assert weight.const_value is not None
    x = ir.Value(name=left.name, type=ir.TensorType(weight.const_value.dtype), shape=ir.Shape([None, None, None]))
    matrix = ir.Value(name=weight.name, type=weight.type, shape=weight.shape, const_value=weight.const_value)
    copy = ir.node("MatMul", inputs=[x, matrix], name=node.name)
    copy.outputs[0].name = node.outputs[0].name
    copy.outputs[0].type = x.type
    graph = ir.Graph(
        [x], [copy.outputs[0]], nodes=[copy], initializers=[matrix], opset_imports=dict(whole.graph.opset_imports)
    )
    return ir.Model(graph, ir_version=whole.ir_version)


def replace_node(graph: ir.Graph, node: ir.Node, quantized: ir.Model) -> None:
    """Replace `node` and its matrix in `graph` by the only node of `quantized` and its constants."""
    (found,) = quantized.graph
    constants = []
    for value in found.inputs[1:]:
        assert value is not None
        assert value.const_value is not None
        # A copy, since a part of a protobuf message keeps the memory of all of it, here of the matrix.
        tensor = ir.tensor(value.const_value.numpy().copy(), name=value.name)
        constant = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=tensor)
        graph.register_initializer(constant)
        constants.append(constant)
    new = ir.Node(
        found.domain, found.op_type, [node.inputs[0], *constants], list(found.attributes.values()), name=found.name
    )
    old, output, weight = node.outputs[0], new.outputs[0], node.inputs[1]
    output.name, output.type, output.shape = old.name, old.type, old.shape
    graph.insert_after(node, new)
    ir.convenience.replace_all_uses_with(old, output, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    assert weight is not None
    assert weight.name is not None
    if not weight.uses():
        del graph.initializers[weight.name]
        weight.const_value = None  # the builder keeps the value


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
