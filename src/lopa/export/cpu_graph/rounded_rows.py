"""Pass that rounds the rows of integer products with less memory traffic.

export/graph/quantize_pass.py writes rows divided by their scales in standard operators: Abs, ReduceMax, Max, Mul, Div,
QuantizeLinear, and a float product that ONNX Runtime converts to an integer product. With the same scales and integers,
this pass makes four changes:

* The largest magnitude comes from the maximum and the minimum of a row. Reading a row twice costs less than writing its
  magnitudes and reading them.
* The scale of a row with a NaN is NaN. ReduceMax and ReduceMin skip a NaN that is not the first number of its row.
* QuantizeLinear does the division, with a row as one block with its own scale. The other standard form has one scale
  per row of a matrix, along axis 0. ONNX Runtime distributes blocks over threads, but not such rows.
* The product is MatMulIntegerToFloat of com.microsoft. ONNX Runtime's own conversion adds a vector of the weights' zero
  points, all 0, which costs time.

Measurements: docs/measurements/cpu.md.

A second pass, on the nodes of the first, fuses the scaling of products with the addition to the residual. GatedAdd of
com.microsoft multiplies and adds in one pass over memory, bit-equal to Mul and Add. Measurements:
docs/measurements/cpu.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.graph.quantize_pass import replace_value

MICROSOFT = "com.microsoft"
_ZERO_POINT = 128
"""Zero point of rows: ONNX Runtime's products on x86 take uint8 around 128."""


@dataclass(frozen=True, eq=False)
class _RowRounding:
    """Nodes that round the rows of one factor: Abs, ReduceMax, Max, Mul, Div and QuantizeLinear."""

    factor: ir.Value
    """Factor whose rows are rounded, float32 [.., inputs]."""
    magnitudes: ir.Node
    """Abs of the factor."""
    largest: ir.Node
    """ReduceMax of the magnitudes, float32 [.., 1]."""
    not_zero: ir.Node
    """Max of `largest` and the lower bound of magnitudes."""
    divided: ir.Node
    """Div of the factor by the scales."""
    quantized: ir.Node
    """QuantizeLinear of the divided rows, uint8 [.., inputs]."""

    @property
    def scales(self) -> ir.Value:
        """Scales of the rows, float32 [.., 1]."""
        scales = self.divided.inputs[1]
        assert scales is not None  # ensured by _rounding_of
        return scales


class RoundedRowsPass(ir.passes.InPlacePass):
    """Pass that replaces the rounding of rows and the products of rounded rows. Other graphs stay unchanged."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes."""
        zero_points = _ZeroPoints()
        modified = False
        for node in tuple(model.graph):
            rounding = _rounding_of(node)
            if rounding is None:
                continue
            _keep_nan(rounding)
            modified = True
            inputs = _inputs_of(rounding)
            if inputs is None:
                continue
            _round_in_blocks(rounding, inputs, zero_points)
            for product in tuple(_products_of(rounding)):
                _multiply_integers(product)
        if modified:
            model.opset_imports[MICROSOFT] = 1
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified=modified)


def _rounding_of(node: ir.Node) -> _RowRounding | None:
    """Return the rounding that ends at `node`, a QuantizeLinear of lopa.export.graph.quantize_pass; None for others."""
    divided = _producer(node, 0, "Div") if node.op_type == "QuantizeLinear" else None
    scales = _producer(divided, 1, "Mul")
    not_zero = _producer(scales, 0, "Max")
    largest = _producer(not_zero, 0, "ReduceMax")
    magnitudes = _producer(largest, 0, "Abs")
    if divided is None or not_zero is None or largest is None or magnitudes is None:
        return None
    factor = divided.inputs[0]
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None  # its type is that of the rounded rows
    if (
        factor is None
        or magnitudes.inputs[0] is not factor
        or zero_point is None
        or zero_point.dtype != ir.DataType.UINT8
    ):
        return None
    return _RowRounding(factor, magnitudes, largest, not_zero, divided, node)


def _producer(node: ir.Node | None, position: int, operator: str) -> ir.Node | None:
    """Return the producer of an input of `node` if it is this standard operator, otherwise None."""
    value = node.inputs[position] if node is not None and position < len(node.inputs) else None
    found = value.producer() if value is not None else None
    return found if found is not None and found.op_type == operator and found.domain == "" else None


def _inputs_of(rounding: _RowRounding) -> int | None:
    """Return the size of a row; None if neither the factor's shape nor a weight's gives it."""
    for value in (rounding.factor, _before_cast(rounding.factor)):
        if value.shape is not None and isinstance(value.shape[-1], int):
            return value.shape[-1]
    for product in _products_of(rounding):
        weight = product.inputs[1].producer().inputs[0]  # type: ignore[union-attr]
        if weight is not None and weight.shape is not None and isinstance(weight.shape[0], int):
            return weight.shape[0]
    return None


def known_dims(value: ir.Value) -> tuple[int | str, ...] | None:
    """Return the sizes, or the names of dynamic ones; None if an axis has neither."""
    if value.shape is None:
        return None
    dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    named = tuple(dim for dim in dims if dim is not None)
    return named if len(named) == len(dims) else None


def _before_cast(value: ir.Value) -> ir.Value:
    cast = value.producer()
    source = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    return value if source is None else source


class _ZeroPoints:
    """Zero points (uint8 128) of the rows of each factor. Factors with the same rows share them."""

    def __init__(self) -> None:
        self._made: dict[tuple[int | str, ...] | None, ir.Value] = {}
        """Zero points by the dimensions of the rows, if all have names."""

    def of_rows(self, rounding: _RowRounding) -> ir.Value:
        """Return zero points [.., 1], the shape of the scales."""
        dims = known_dims(_before_cast(rounding.factor))
        key = None if dims is None else dims[:-1]
        if key in self._made:
            return self._made[key]
        name = f"{rounding.quantized.name}/zero_points"
        like = ir.node("Shape", [rounding.scales], name=f"{name}/shape")
        number = ir.tensor([_ZERO_POINT], ir.DataType.UINT8)
        filled = ir.node("ConstantOfShape", [like.outputs[0]], {"value": number}, name=name)
        rounding.quantized.prepend([like, filled])
        if key is not None:
            self._made[key] = filled.outputs[0]
        return filled.outputs[0]


def _keep_nan(rounding: _RowRounding) -> None:
    """Make the scale of a row with a NaN NaN: sums, Min and Max keep it. Min bounds sums that are infinite."""
    not_zero, name = rounding.not_zero, f"{rounding.not_zero.name}/nan"
    total = ir.node("ReduceSum", [rounding.factor, *rounding.largest.inputs[1:]], {"keepdims": 1}, name=f"{name}/sum")
    bounded = ir.node("Min", [total.outputs[0], not_zero.inputs[1]], name=name)
    not_zero.prepend([total, bounded])
    not_zero.resize_inputs(3)
    not_zero.replace_input_with(2, bounded.outputs[0])


def _round_in_blocks(rounding: _RowRounding, inputs: int, zero_points: _ZeroPoints) -> None:
    """Compute magnitudes from extremes, and quantize each row as one block. Scales and integers stay the same."""
    largest, name = rounding.largest, rounding.largest.name
    largest.replace_input_with(0, rounding.factor)
    lower = ir.node("ReduceMin", [rounding.factor, *largest.inputs[1:]], {"keepdims": 1}, name=f"{name}/least")
    negative = ir.node("Neg", [lower.outputs[0]], name=f"{name}/negative")
    magnitude = ir.node(
        "Max", [largest.outputs[0], negative.outputs[0], *rounding.not_zero.inputs[1:]], name=rounding.not_zero.name
    )
    rounding.not_zero.prepend([lower, negative, magnitude])
    rounding.not_zero.outputs[0].replace_all_uses_with(magnitude.outputs[0])
    quantized = rounding.quantized
    quantized.replace_input_with(0, rounding.factor)
    quantized.replace_input_with(1, rounding.scales)
    quantized.replace_input_with(2, zero_points.of_rows(rounding))
    quantized.attributes.update({"axis": ir.AttrInt64("axis", -1), "block_size": ir.AttrInt64("block_size", inputs)})


def _products_of(rounding: _RowRounding) -> Iterator[ir.Node]:
    """Yield every MatMul of the rounded rows and a matrix with a scale per column."""
    for use in rounding.quantized.outputs[0].uses():
        if use.node.op_type != "DequantizeLinear":
            continue
        for product in (use.node for use in use.node.outputs[0].uses()):
            weight = _producer(product, 1, "DequantizeLinear")
            if product.op_type == "MatMul" and weight is not None and _has_column_scales(weight):
                yield product


def _has_column_scales(weight: ir.Node) -> bool:
    axis, block = weight.attributes.get("axis"), weight.attributes.get("block_size")
    return len(weight.inputs) == 2 and axis is not None and axis.as_int() == 1 and block is None


def _multiply_integers(product: ir.Node) -> None:
    """Replace MatMul(DequantizeLinear(rows), DequantizeLinear(weight)) by MatMulIntegerToFloat(rows, weight)."""
    rows, weight = _producer(product, 0, "DequantizeLinear"), _producer(product, 1, "DequantizeLinear")
    assert rows is not None
    assert weight is not None
    integers, one, zero = rows.inputs
    inputs = [integers, weight.inputs[0], one, weight.inputs[1], zero]
    result = ir.node("MatMulIntegerToFloat", inputs, domain=MICROSOFT, name=product.name)
    replace_value(result.outputs[0], product.outputs[0])
    product.prepend(result)


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
    replace_value(node.outputs[0], total.outputs[0])
    return True
