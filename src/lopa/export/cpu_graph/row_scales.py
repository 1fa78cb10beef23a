"""A pass that multiplies products of rounded rows by the rows' scales where they are added to the residual.

com.microsoft's GatedAdd multiplies and adds in one pass over memory, with the same bits as Mul and Add. Comes after
lopa.export.cpu_graph.rounded_rows, whose nodes it looks for. Measured: docs/measurements/cpu.md.
"""

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.cpu_graph.rounded_rows import MICROSOFT, known_dims


class RowScalesPass(ir.passes.InPlacePass):
    """Add(x, Mul(product, scales)) -> GatedAdd(x, product, scales); a graph without such is left as it is."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace."""
        moved = [_moved_into_sum(node) for node in tuple(model.graph) if _is_scaled_product(node)]
        if any(moved):
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified=any(moved))


def _is_scaled_product(node: ir.Node) -> bool:
    """Mul(MatMulIntegerToFloat(rounded rows, ..), their scales)?"""
    product = node.inputs[0].producer() if node.op_type == "Mul" and node.inputs[0] is not None else None
    if product is None or product.op_type != "MatMulIntegerToFloat":
        return False
    integers = product.inputs[0]
    rounding = integers.producer() if integers is not None else None
    return rounding is not None and rounding.op_type == "QuantizeLinear" and rounding.inputs[1] is node.inputs[1]


def _moved_into_sum(scaled: ir.Node) -> bool:
    """Whether the only use of a scaled product is a sum of two float32 values whose shapes are known to be the same."""
    product = scaled.outputs[0]
    uses = product.uses()
    if len(uses) != 1 or product.is_graph_output():
        return False
    (use,) = uses
    total = use.node
    other = total.inputs[1 - use.idx] if total.op_type == "Add" else None
    dims = known_dims(product)
    if other is None or dims is None or known_dims(other) != dims or total.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    node = ir.node("GatedAdd", [other, *scaled.inputs], domain=MICROSOFT, name=total.name)
    total.prepend(node)
    new, result = node.outputs[0], total.outputs[0]
    new.name, new.shape, new.type = result.name, result.shape, result.type
    ir.convenience.replace_all_uses_with(result, new, replace_graph_outputs=True)
    return True
