"""Pass that fuses the scaling of rounded rows' products with the addition to the residual.

GatedAdd of com.microsoft multiplies and adds in one pass over memory, bit-equal to Mul and Add. The pass runs after
lopa.export.cpu_graph.rounded_rows, whose nodes it looks for. Measurements: docs/measurements/cpu.md.
"""

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.cpu_graph.rounded_rows import MICROSOFT, known_dims


class RowScalesPass(ir.passes.InPlacePass):
    """Pass that replaces Add(x, Mul(product, scales)) by GatedAdd(x, product, scales). Other graphs stay unchanged."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes."""
        moved = [_fuse_with_sum(node) for node in tuple(model.graph) if _is_scaled_product(node)]
        if any(moved):
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified=any(moved))


def _is_scaled_product(node: ir.Node) -> bool:
    """Return True for Mul(MatMulIntegerToFloat(rounded rows, ..), scales of the rows)."""
    product = node.inputs[0].producer() if node.op_type == "Mul" and node.inputs[0] is not None else None
    if product is None or product.op_type != "MatMulIntegerToFloat":
        return False
    integers = product.inputs[0]
    rounding = integers.producer() if integers is not None else None
    return rounding is not None and rounding.op_type == "QuantizeLinear" and rounding.inputs[1] is node.inputs[1]


def _fuse_with_sum(scaled: ir.Node) -> bool:
    """Fuse a scaled product with its only use, a sum of two float32 values of equal known shapes. Return True on
    success.
    """
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
