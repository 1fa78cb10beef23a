"""Modified portable graphs."""

from collections.abc import Callable
from pathlib import Path

import onnx


def altered_graph(source: Path, target: Path, alter: Callable[[onnx.ModelProto], object]) -> Path:
    """Apply `alter` to the graph `source` and write it to `target`, without weights."""
    model = onnx.load(source, load_external_data=False)
    alter(model)
    target.write_bytes(model.SerializeToString())
    return target


def quantized(model: onnx.ModelProto) -> None:
    """Insert the operators of AMCT: AscendQuant before a product and AscendDequant after it."""
    product = next(node for node in model.graph.node if node.op_type == "MatMul")
    at = list(model.graph.node).index(product)
    name, output = product.input[0], product.output[0]
    product.input[0], product.output[0] = f"{name}.quant", f"{output}.quant"
    quant = onnx.helper.make_node("AscendQuant", [name], [f"{name}.quant"], name="q", scale=1.0, offset=0.0)
    dequant = onnx.helper.make_node("AscendDequant", [f"{output}.quant"], [output], name="d")
    model.graph.node.insert(at + 1, dequant)
    model.graph.node.insert(at, quant)
