"""Pass that makes int4 products NaN in rows with NaN or infinity, which ONNX Runtime would round to integers."""

import numpy as np
import onnx_ir as ir

from lopa.export.graph.quantize_pass import initializer


class NonFiniteRowsPass(ir.passes.InPlacePass):
    """Pass that adds 0 times the sum of a row to its products: 0, or NaN if the sum is not finite.

    Sums are float32, which float16 rows do not exceed. Products of experts, whose rows are split, are marked joined.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Mark the products."""
        found: dict[ir.Value, tuple[ir.Value, ir.DataType | None]] = {}
        for product in model.graph:
            rows, factor = product.inputs[:2] if product.op_type == "MatMul" else (None, None)
            weight = factor.producer() if factor is not None else None
            if rows is None or weight is None or "block_size" not in weight.attributes:
                continue
            result, split = product.outputs[0], rows.producer()
            join = next((use.node for use in result.uses()), None)
            if split is not None and join is not None and (split.op_type, join.op_type) == ("Split", "Concat"):
                rows, result = split.inputs[0] or rows, join.outputs[0]
            found[result] = rows, weight.inputs[1].dtype if weight.inputs[1] is not None else None
        if found:
            numbers = {"zero": np.float32(0), "last_axis": np.array([-1])}
            zero, axis = (initializer(model, ir.tensor(x, name=f"nonfinite_rows.{key}")) for key, x in numbers.items())
        for result, (rows, dtype) in found.items():
            _mark(result, rows, dtype or ir.DataType.FLOAT, zero, axis)
        return ir.passes.PassResult(model, modified=bool(found))


def _mark(result: ir.Value, rows: ir.Value, dtype: ir.DataType, zero: ir.Value, axis: ir.Value) -> None:
    """Replace `result` by its sum with the mark of `rows`. A session computes equal marks once."""
    name = result.name
    wide = ir.node("Cast", [rows], {"to": ir.DataType.FLOAT}, name=f"{name}/wide_rows")
    total = ir.node("ReduceSum", [wide.outputs[0], axis], {"keepdims": 1}, name=f"{name}/sum")
    zeros = ir.node("Mul", [total.outputs[0], zero], name=f"{name}/zeros")
    mark = ir.node("Cast", [zeros.outputs[0]], {"to": dtype}, name=f"{name}/mark")
    producer = result.producer()
    assert producer is not None
    added = ir.node("Add", [result, mark.outputs[0]], name=f"{name}/marked")
    producer.append([wide, total, zeros, mark, added])
    new = added.outputs[0]
    new.name, new.shape, new.type, result.name = name, result.shape, result.type, f"{name}/unmarked"
    ir.convenience.replace_all_uses_with(result, new, replace_graph_outputs=True)
    added.replace_input_with(0, result)
