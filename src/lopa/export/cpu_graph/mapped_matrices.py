"""Passes that give products with quantized matrices, and experts, to lopa's own operators.

ONNX Runtime's kernels copy every matrix into their own layout when a session opens. These operators read the bundle's
mapped file and need no copy (lopa.runtime.cpu_kernels).
"""

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.cpu_graph.rounded_rows import MICROSOFT
from lopa.export.graph.expert_layer import layer_from_node
from lopa.export.graph.experts import expert_nodes
from lopa.export.graph.quantize_pass import replace_value
from lopa.runtime.cpu_kernels.kernel_library import BLOCK, DOMAIN


class MappedInt4Pass(ir.passes.InPlacePass):
    """Pass that replaces MatMul(x, DequantizeLinear(W int4, block scales)) by MatMulInt4(x, W, block scales).

    The operator needs scales of BLOCK inputs each and an even number of outputs. Other products stay. Rows of float16
    are cast to float32 and back.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the products."""
        found = [(node, _int4_factor(node)) for node in model.graph if node.op_type == "MatMul"]
        products = [(node, factor) for node, factor in found if factor is not None]
        for product, factor in products:
            if factor.inputs[1] is not None and factor.inputs[1].dtype == ir.DataType.FLOAT16:
                _cast_rows(product)
                operator = "MatMulInt4HalfScales"
            else:
                operator = "MatMulInt4"
            _replace(product, operator, [product.inputs[0], factor.inputs[0], factor.inputs[1]])
        return _finished(model, modified=bool(products))


class MappedInt8Pass(ir.passes.InPlacePass):
    """Pass that replaces the MatMulIntegerToFloat of lopa.export.cpu_graph.rounded_rows by MatMulInt8.

    The results are equal: sums are exact, and rows are multiplied by 1.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the products."""
        products = [
            node for node in tuple(model.graph) if node.op_type == "MatMulIntegerToFloat" and node.domain == MICROSOFT
        ]
        for product in products:
            rows, weight, _, scales, _ = product.inputs
            _replace(product, "MatMulInt8", [rows, weight, scales])
        return _finished(model, modified=bool(products))


class MappedExpertsPass(ir.passes.InPlacePass):
    """Pass that computes the experts of a sparse layer by one of lopa's own operators.

    It reads only the matrices of experts that a row uses. Rows of float16 are cast to float32 and back. It computes no
    FP8. With `gelu`, experts have it in place of silu.
    """

    def __init__(self, *, gelu: bool = False) -> None:
        super().__init__()
        self._attributes = {"gelu": 1} if gelu else {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes of experts (lopa.export.graph.experts)."""
        nodes = [node for node in expert_nodes(model) if not layer_from_node(node).gate.is_fp8]
        for node in nodes:
            operator = _expert_operator(node)
            if node.outputs[0].dtype == ir.DataType.FLOAT16:
                _cast_rows(node)
            _replace(node, operator, list(node.inputs), self._attributes)
        return _finished(model, modified=bool(nodes))


def _expert_operator(node: ir.Node) -> str:
    """Return the operator for the types of a node's matrices and scales."""
    gate, after = node.inputs[3], node.inputs[4]
    assert gate is not None
    assert after is not None
    if gate.dtype == ir.DataType.INT4:
        return "ExpertsInt4HalfScales" if after.dtype == ir.DataType.FLOAT16 else "ExpertsInt4"
    if gate.dtype == ir.DataType.INT8:
        return "ExpertsInt8"
    return "ExpertsFloat16" if gate.dtype == ir.DataType.FLOAT16 else "ExpertsFloat"


def _int4_factor(product: ir.Node) -> ir.Node | None:
    """Return the DequantizeLinear whose output is the second factor if MatMulInt4 can replace the product."""
    value = product.inputs[1]
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "DequantizeLinear" or len(node.inputs) != 2:
        return None
    weight, scales = node.inputs
    block = node.attributes.get("block_size")
    if weight is None or scales is None or weight.shape is None or weight.dtype != ir.DataType.INT4:
        return None
    fits = scales.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16) and block is not None and block.as_int() == BLOCK
    return node if fits and weight.shape.numpy()[1] % 2 == 0 else None


def _cast_rows(product: ir.Node) -> None:
    """Cast the first input of a float16 node to float32, and its result back."""
    result = product.outputs[0]
    rows = ir.node("Cast", [product.inputs[0]], {"to": ir.DataType.FLOAT.value}, name=f"{product.name}/rows")
    back = ir.node("Cast", [result], {"to": ir.DataType.FLOAT16.value}, name=f"{product.name}/result")
    product.prepend(rows)
    product.append(back)
    product.replace_input_with(0, rows.outputs[0])
    narrow = back.outputs[0]
    narrow.name, narrow.shape, narrow.type = result.name, result.shape, result.type
    result.name, result.type = f"{result.name}/float32", ir.TensorType(ir.DataType.FLOAT)
    ir.convenience.replace_all_uses_with(result, narrow, replace_graph_outputs=True)
    back.replace_input_with(0, result)


def _replace(
    product: ir.Node, operator: str, inputs: list[ir.Value | None], attributes: dict[str, int] | None = None
) -> None:
    result = ir.node(operator, inputs, attributes, domain=DOMAIN, name=product.name)
    replace_value(result.outputs[0], product.outputs[0])
    product.prepend(result)


def _finished(model: ir.Model, *, modified: bool) -> ir.passes.PassResult:
    if modified:
        model.opset_imports[DOMAIN] = 1
        common.RemoveUnusedNodesPass()(model)
    return ir.passes.PassResult(model, modified=modified)
