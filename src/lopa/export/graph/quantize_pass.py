"""Pass that replaces floating-point matrices by integers or FP8 and scales, in standard operators only.

For int8, each row of the other factor is divided by its scale (its largest magnitude / 127) and rounded to int8. The
product of the integers times the scales of the columns is float32, and is multiplied by the rows' scales.
QuantizeLinear with scale 1 and DequantizeLinear around MatMul make it one integer product in ONNX Runtime
(MatMulIntegerToFloat on CPUs) and in TensorRT. A row's result depends on that row alone, so a request's tokens do not
depend on its batch mates. Products that share a factor share its rounded rows.

Without rounded rows, as in portable graphs, DequantizeLinear and MatMul use the same matrices with the other factor
unchanged.

FP8 has the same form with numbers in E4M3, and matrices [outputs, inputs] that Transpose follows.

For int4, DequantizeLinear works in blocks, and ONNX Runtime fuses it with MatMul to MatMulNBits. The other factor is
unchanged.

lopa.export.tensorrt.products uses the products of rounded rows for TensorRT's 8-bit products with float weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from lopa.runtime.contract.float8 import MAX_E4M3, MIN_MAGNITUDE


@dataclass(frozen=True)
class RoundingType:
    """An 8-bit type that rows are rounded to."""

    dtype: ir.DataType
    max_magnitude: float
    zero_point: int = 0

    def zeros(self, shape: tuple[int, ...] = ()) -> npt.NDArray[np.generic]:
        """Return an array of zero points."""
        return np.full(shape, self.zero_point, self.dtype.numpy())


# The type of ONNX Runtime's integer products on CPUs.
AROUND_128 = RoundingType(ir.DataType.UINT8, 127.0, zero_point=128)
E4M3 = RoundingType(ir.DataType.FLOAT8E4M3FN, MAX_E4M3)


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """Replacement of one matrix [inputs, outputs]."""

    integers: ir.TensorProtocol
    """Integers of the matrix, int8 or int4 [inputs, outputs], or FP8 [outputs, inputs]."""
    scales: ir.TensorProtocol
    """Scales, [outputs] for int8 and FP8, and [inputs / block, outputs] for int4."""

    @property
    def block(self) -> int:
        """Number of inputs that share an int4 scale."""
        return self.integers.shape.numpy()[0] // self.scales.shape.numpy()[0]


@dataclass(frozen=True, eq=False)
class _RoundedRows:
    """A factor of a product, each row divided by its scale and rounded."""

    rounded: ir.Value
    """Rounded rows, float32 [.., rows, inputs], with magnitudes up to the maximum of the type."""
    scales: ir.Value
    """Scales of the rows, float32 [.., rows, 1]."""


class QuantizedMatricesPass(ir.passes.InPlacePass):
    """Pass that replaces MatMul(x, W) by the product with W's integers and scales, for every name W in `matrices`."""

    def __init__(self, matrices: Mapping[str, QuantizedMatrix], *, rounds_rows: bool = True) -> None:
        """`rounds_rows`: round the other factor of products with int8 matrices, so that they are integer products."""
        super().__init__()
        self._matrices = matrices
        self._rounds_rows = rounds_rows

    def requires(self, model: ir.Model) -> None:
        """Raise PreconditionError unless every matrix is an initializer used only as the second factor of MatMul."""
        for name in self._matrices:
            value = model.graph.initializers.get(name)
            if value is None:
                raise ir.passes.PreconditionError(f"the graph has no initializer {name} to quantize")
            others = [use.node.name for use in value.uses() if use.node.op_type != "MatMul" or use.idx != 1]
            if others or not value.uses():
                raise ir.passes.PreconditionError(
                    f"{name} must only be the second factor of products, but is used by {others}"
                )

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the matrices. Initializers keep their names."""
        products, fp8_products = RoundedProducts(model, AROUND_128), RoundedProducts(model, E4M3)
        for name, matrix in self._matrices.items():
            original = model.graph.initializers.pop(name)
            integers, scales = initializer(model, matrix.integers), initializer(model, matrix.scales)
            for use in tuple(original.uses()):
                if matrix.integers.dtype == ir.DataType.FLOAT8E4M3FN:
                    fp8_products.replace(use.node, _transposed_weight(use.node, integers, scales))
                elif matrix.integers.dtype == ir.DataType.INT8 and self._rounds_rows:
                    weight = ir.node(
                        "DequantizeLinear", [integers, scales], {"axis": 1}, name=f"{use.node.name}/weight"
                    )
                    products.replace(use.node, [weight])
                elif matrix.integers.dtype == ir.DataType.INT8:
                    _multiply_dequantized(use.node, integers, scales, {"axis": 1})
                else:
                    _multiply_dequantized(use.node, integers, scales, {"axis": 0, "block_size": matrix.block})
        return ir.passes.PassResult(model, modified=bool(self._matrices))

    def ensures(self, model: ir.Model) -> None:
        """Raise PostconditionError unless every matrix now consists of integers that only DequantizeLinear uses."""
        for name in self._matrices:
            value = model.graph.initializers[name]
            operators = {use.node.op_type for use in value.uses()}
            if value.dtype not in _QUANTIZED_TYPES or operators != {"DequantizeLinear"}:
                raise ir.passes.PostconditionError(f"{name} is {value.dtype}, used by {sorted(operators)}")


_QUANTIZED_TYPES = (ir.DataType.INT8, ir.DataType.INT4, ir.DataType.FLOAT8E4M3FN)


def _transposed_weight(product: ir.Node, stored: ir.Value, scales: ir.Value) -> list[ir.Node]:
    """Return the nodes that compute a matrix [inputs, outputs] from FP8 [outputs, inputs]."""
    weight = ir.node("DequantizeLinear", [stored, scales], {"axis": 0}, name=f"{product.name}/weight")
    transposed = ir.node("Transpose", [weight.outputs[0]], {"perm": [1, 0]}, name=f"{product.name}/transposed")
    return [weight, transposed]


def _multiply_dequantized(
    product: ir.Node, integers: ir.Value, scales: ir.Value, attributes: Mapping[str, int]
) -> None:
    """Replace MatMul(x, W) by MatMul(x, DequantizeLinear(W)), with a Cast to the type of the product if it differs."""
    weight = ir.node("DequantizeLinear", [integers, scales], attributes, name=f"{product.name}/weight")
    product.prepend(weight)
    dtype = product.outputs[0].dtype
    if dtype is not None and dtype != scales.dtype:
        weight = ir.node("Cast", [weight.outputs[0]], {"to": dtype}, name=f"{product.name}/narrowed_weight")
        product.prepend(weight)
    product.replace_input_with(1, weight.outputs[0])


class RoundedProducts:
    """Replacement of a model's products by products with rows rounded to `kind`.

    Equal rows and constants are shared.
    """

    def __init__(self, model: ir.Model, kind: RoundingType) -> None:
        self._model = model
        self._kind = kind
        self._rows: dict[ir.Value, _RoundedRows] = {}

    def replace(self, product: ir.Node, weight: list[ir.Node]) -> None:
        """Replace MatMul(x, W) by MatMul(rounded rows of x, weight) * scales of the rows, all in float32.

        `weight` are the new nodes that compute W; the output of the last one is float32. A Cast follows if the product
        has another type, except before a Cast to float32.
        """
        factor, result = product.inputs[0], product.outputs[0]
        if factor is None or result.dtype is None:
            raise ir.passes.PassError(f"{product.name} has no first factor or a result of unknown type")
        if factor not in self._rows:
            self._rows[factor] = self._rounded_rows(product, factor)
        rows = self._rows[factor]
        rounded = ir.node("MatMul", [rows.rounded, weight[-1].outputs[0]], name=product.name)
        scaled = ir.node("Mul", [rounded.outputs[0], rows.scales], name=f"{product.name}/scaled")
        product.prepend([*weight, rounded, scaled])
        if result.dtype == ir.DataType.FLOAT:
            replace_value(scaled.outputs[0], result)
        else:
            for widened in [use.node for use in result.uses() if _is_cast_to_float32(use.node)]:
                replace_value(scaled.outputs[0], widened.outputs[0])  # without a rounding in between
                self._model.graph.remove(widened, safe=True)
            if result.uses() or result.is_graph_output():
                narrowed = ir.node("Cast", [scaled.outputs[0]], {"to": result.dtype}, name=f"{product.name}/narrowed")
                product.prepend(narrowed)
                replace_value(narrowed.outputs[0], result)
        self._model.graph.remove(product, safe=True)

    def integers_of_rows(self, before: ir.Node, factor: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Insert the nodes that round the rows of `factor` before the node `before`.

        Return the integers [.., rows, inputs] and the scales of the rows, float32 [.., rows, 1].
        """
        owner = factor.producer()
        name = f"{owner.name if owner is not None else before.name}/rows"

        def add(op: str, inputs: list[ir.Value], attributes: dict[str, int] | None = None) -> ir.Value:
            node = ir.node(op, inputs, attributes or {}, name=f"{name}/{op}")
            before.prepend(node)
            return node.outputs[0]

        x = factor if factor.dtype == ir.DataType.FLOAT else add("Cast", [factor], {"to": ir.DataType.FLOAT})
        last_axis = self._constant("last_axis", np.array([-1], np.int64))
        magnitude = add("ReduceMax", [add("Abs", [x]), last_axis], {"keepdims": 1})
        not_zero = add("Max", [magnitude, self._constant("least", np.float32(MIN_MAGNITUDE))])
        scales = add("Mul", [not_zero, self._constant("step", np.float32(1.0 / self._kind.max_magnitude))])
        return add("QuantizeLinear", [add("Div", [x, scales]), *self.one_and_zero]), scales

    @property
    def one_and_zero(self) -> list[ir.Value]:
        """Scale and zero point of rounded rows for QuantizeLinear and DequantizeLinear."""
        return [self._constant("one", np.float32(1.0)), self._constant("zero", self._kind.zeros())]

    def _rounded_rows(self, before: ir.Node, factor: ir.Value) -> _RoundedRows:
        """Insert the nodes that round the rows of `factor` before the node `before`, and return their outputs."""
        integers, scales = self.integers_of_rows(before, factor)
        owner = integers.producer()
        name = (owner.name or "").removesuffix("QuantizeLinear") if owner is not None else ""
        widened = ir.node("DequantizeLinear", [integers, *self.one_and_zero], name=f"{name}DequantizeLinear")
        before.prepend(widened)
        return _RoundedRows(widened.outputs[0], scales)

    def _constant(self, key: str, number: np.generic | npt.NDArray[Any]) -> ir.Value:
        """Return a constant that all rounded rows of the model share."""
        return shared_constant(self._model, f"quantize.{key}", number)


def initializer(model: ir.Model, tensor: ir.TensorProtocol) -> ir.Value:
    """Add an initializer to the graph under the tensor's name, and return it."""
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    model.graph.initializers.add(value)
    return value


def shared_constant(model: ir.Model, name: str, number: np.generic | npt.NDArray[Any]) -> ir.Value:
    """Return the initializer `name`, which is added once with the value `number`."""
    known = model.graph.initializers.get(name)
    return initializer(model, ir.tensor(np.asarray(number), name=name)) if known is None else known


def replace_value(new: ir.Value, old: ir.Value) -> None:
    """Use `new` in place of `old`, with its name, shape and type."""
    new.name, new.shape, new.type = old.name, old.shape, old.type
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def _is_cast_to_float32(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT
