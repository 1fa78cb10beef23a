"""Pass that makes products with int4 matrices NaN in rows with NaN or infinity.

ONNX Runtime rounds the rows of these products to 8 bits, in which a NaN becomes an integer. The answer would be finite.
"""

import numpy as np
import onnx_ir as ir

from lopa.export.graph.quantize_pass import initializer


class NonFiniteRowsPass(ir.passes.InPlacePass):
    """Pass that adds 0 times the sum of a row to its products: 0, or NaN if the sum is not finite."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Mark the products. Those of experts, whose rows are split, are marked where they are joined."""
        marks: dict[ir.Value, ir.Value] = {}
        marked: set[ir.Value] = set()
        for product in tuple(model.graph):
            weight = product.inputs[1].producer() if product.op_type == "MatMul" and product.inputs[1] else None
            if weight is None or weight.op_type != "DequantizeLinear" or "block_size" not in weight.attributes:
                continue
            rows, result = product.inputs[0], product.outputs[0]
            split, join = rows.producer() if rows else None, result.uses()[0].node if result.uses() else None
            if split is not None and join is not None and (split.op_type, join.op_type) == ("Split", "Concat"):
                rows, result = split.inputs[0], join.outputs[0]
            assert rows is not None
            assert weight.inputs[1] is not None
            if rows not in marks:
                marks[rows] = _mark(model, rows, product, weight.inputs[1].dtype)
            if result not in marked:
                _add(result, marks[rows])
                marked.add(result)
        return ir.passes.PassResult(model, modified=bool(marked))


def _mark(model: ir.Model, rows: ir.Value, product: ir.Node, dtype: ir.DataType | None) -> ir.Value:
    """Return 0 or NaN for each row, [.., 1] in the type `dtype`. Sums are float32, which float16 rows do not exceed."""
    numbers = {"zero": np.float32(0), "last_axis": np.array([-1])}
    zero, last_axis = (
        model.graph.initializers.get(f"nonfinite_rows.{key}")
        or initializer(model, ir.tensor(number, name=f"nonfinite_rows.{key}"))
        for key, number in numbers.items()
    )
    wide = ir.node("Cast", [rows], {"to": ir.DataType.FLOAT}, name=f"{product.name}/wide_rows")
    total = ir.node("ReduceSum", [wide.outputs[0], last_axis], {"keepdims": 1}, name=f"{product.name}/sum_of_rows")
    zeros = ir.node("Mul", [total.outputs[0], zero], name=f"{product.name}/wide_mark")
    mark = ir.node("Cast", [zeros.outputs[0]], {"to": dtype or ir.DataType.FLOAT}, name=f"{product.name}/mark")
    product.prepend([wide, total, zeros, mark])
    return mark.outputs[0]


def _add(result: ir.Value, mark: ir.Value) -> None:
    """Add `mark` to the rows of `result` for all its users."""
    producer = result.producer()
    assert producer is not None
    added = ir.node("Add", [result, mark], name=f"{producer.name}/marked")
    new = added.outputs[0]
    producer.append(added)
    new.name, new.shape, new.type, result.name = result.name, result.shape, result.type, f"{result.name}/unmarked"
    ir.convenience.replace_all_uses_with(result, new, replace_graph_outputs=True)
    added.replace_input_with(0, result)
