"""Products with quantized matrices in the forms that QNN keeps on the NPU, where weights stay 8 or 4 bits.

QNN multiplies an int8 matrix only by rows of 8- or 16-bit integers, with scales that are fixed when it compiles. Here
every row is divided by its length (Euclidean norm). Its numbers are then between -1 and 1, and no result exceeds the
longest column (Cauchy-Schwarz). Results are then multiplied by the rows' lengths. Hence no row of any prompt exceeds
the range, and no sample prompts are needed. A factor per column would be stored once per row in the context binary, so
that all columns share one range.

An int4 matrix in blocks becomes MatMulNBits, which multiplies the NPU's float16 rows.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.graph.quantize_pass import AROUND_128, initializer, shared_constant
from lopa.export.graph.webgpu_pass import WebgpuPass
from lopa.runtime.contract.sizes import Sizes

_STEP = np.float32(1.01 / 32767)
"""Step of the 16-bit integers per largest magnitude. Rounding in float16 may exceed it, by less than 1 %."""
_ZERO_POINT = np.uint16(32768)
_MIN_MAGNITUDE = np.float32(2**-7)
"""Lower bound for the largest magnitude of a row. Divided by 127, it is a normal number in float16."""
_MIN_COLUMN = 1e-6
"""Lower bound for the length of the longest column, for matrices of zeros."""
_MIN_LENGTH = np.float32(2**-6)
"""Lower bound for the length of a row after division by its largest magnitude, for rows of zeros."""


class Int16RowsPass(ir.passes.InPlacePass):
    """Pass that rounds the rows of products with int8 matrices to 16 bits in place of 8, and their results as well."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the rounded rows that QuantizedMatricesPass made. Raises PassError for other uses of integers."""
        rounded = [node for node in model.graph if node.op_type == "QuantizeLinear"]
        if rounded:
            least = model.graph.initializers["quantize.least"]
            least.const_value = ir.tensor(_MIN_MAGNITUDE, name=least.name)
        for node in rounded:
            _replace_rows(model, node)
        common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified=bool(rounded))


def with_block_products(model: ir.Model, names: Collection[str], sizes: Sizes) -> ir.Model:
    """Return `model`, changed in place, with MatMulNBits for the int4 matrices `names`. Their values are left out.

    QNN takes MatMulNBits for rows of three axes only, so the rows of the output head [requests, branches, wanted,
    inputs] are reshaped. The shape of every product must be known.
    """
    model = WebgpuPass(names)(model).model
    for node in [each for each in model.graph if each.op_type == "MatMulNBits"]:
        rows, result = node.inputs[0], node.outputs[0]
        if rows is None or rows.shape is None:
            raise ir.passes.PassError(f"{node.name} has rows of unknown shape")
        if len(rows.shape) == len(("requests", "branches", "wanted", "inputs")):
            requests_and_branches = sizes.requests * sizes.branches
            flat = _added(node, "Reshape", [rows, _shape(model, "flat", [requests_and_branches, sizes.wanted, -1])])
            node.replace_input_with(0, flat)
            back = _shape(model, "rows", [sizes.requests, sizes.branches, sizes.wanted, -1])
            reshaped = ir.node("Reshape", [result, back], name=f"{node.name}/Reshape")
            name, shape = result.name, result.shape
            ir.convenience.replace_all_uses_with(result, reshaped.outputs[0], replace_graph_outputs=True)
            reshaped.replace_input_with(0, result)
            node.append([reshaped])
            reshaped.outputs[0].name, reshaped.outputs[0].shape, reshaped.outputs[0].type = name, shape, result.type
            result.name, result.shape = f"{node.name}/flat", None
    return model


def _replace_rows(model: ir.Model, old: ir.Node) -> None:
    """Replace QuantizeLinear(rows / scales) and its products."""
    divided = old.inputs[0]
    division = None if divided is None else divided.producer()
    if division is None or division.op_type != "Div" or divided is None or division.inputs[1] is None:
        raise ir.passes.PassError(f"{old.name} does not round rows that are divided by their scales")
    scales = division.inputs[1]
    largest = _constant(model, "largest", np.float32(AROUND_128.max_magnitude))
    unit = _added(old, "Div", [divided, largest])  # magnitudes up to 1, so that no sum of squares overflows float16
    squares = _added(old, "ReduceSum", [_added(old, "Mul", [unit, unit]), _constant(model, "axis", np.array([-1]))])
    length = _added(old, "Max", [_added(old, "Sqrt", [squares]), _constant(model, "least_length", _MIN_LENGTH)])
    rows = _rounded(model, old, _added(old, "Div", [unit, length]), _constant(model, "step", _STEP))
    row_lengths = _added(old, "Mul", [_added(old, "Mul", [scales, largest]), length])
    for widened in [use.node for use in old.outputs[0].uses()]:
        for product in [use.node for use in widened.outputs[0].uses()]:
            _replace_product(model, product, rows, row_lengths)


def _replace_product(model: ir.Model, product: ir.Node, rows: ir.Value, row_lengths: ir.Value) -> None:
    """Multiply DequantizeLinear(W) by `rows`, round the result, and multiply it by `row_lengths`."""
    weight = product.inputs[1].producer() if product.inputs[1] is not None else None
    scaled = [use.node for use in product.outputs[0].uses()]
    if weight is None or weight.op_type != "DequantizeLinear" or [node.op_type for node in scaled] != ["Mul"]:
        raise ir.passes.PassError(f"{product.name} is no product of rounded rows and an int8 matrix")
    integers, scales = (value.const_value if value is not None else None for value in weight.inputs[:2])
    if integers is None or scales is None:
        raise ir.passes.PassError(f"{weight.name} has no constant matrix")
    longest = longest_column(integers.numpy(), scales.numpy())
    step = initializer(model, ir.tensor(_STEP * longest, name=f"{product.name}/step"))
    product.replace_input_with(0, rows)
    multiplied = scaled[0]
    multiplied.replace_input_with(0, _rounded(model, multiplied, product.outputs[0], step))
    multiplied.replace_input_with(1, row_lengths)


def longest_column(integers: npt.NDArray[np.int8], scales: npt.NDArray[np.floating[Any]]) -> np.float32:
    """Return the largest Euclidean norm of a column of integers [inputs, outputs] x scales [outputs], at least 1e-6."""
    squares: npt.NDArray[np.int64] = np.einsum("ij,ij->j", integers, integers, dtype=np.int64, casting="safe")
    return np.float32(max((np.sqrt(squares) * np.abs(scales)).max(), _MIN_COLUMN))


def _rounded(model: ir.Model, before: ir.Node, values: ir.Value, step: ir.Value) -> ir.Value:
    """Insert the nodes that round `values` to 16 bits. Return the rounded values as floats."""
    scale = [step, _constant(model, "zero_point", _ZERO_POINT)]
    return _added(before, "DequantizeLinear", [_added(before, "QuantizeLinear", [values, *scale]), *scale])


def _added(before: ir.Node, operator: str, inputs: list[ir.Value]) -> ir.Value:
    """Insert a node before another one, and return its output."""
    node = ir.node(operator, inputs)
    before.prepend([node])
    node.name = node.outputs[0].name = f"{inputs[0].name}/{operator}"
    return node.outputs[0]


def _constant(model: ir.Model, key: str, number: np.generic | npt.NDArray[np.generic]) -> ir.Value:
    """Return a constant that all products of the model share."""
    return shared_constant(model, f"int16_rows.{key}", number)


def _shape(model: ir.Model, key: str, shape: list[int]) -> ir.Value:
    return _constant(model, f"shape.{key}", np.array(shape, np.int64))
