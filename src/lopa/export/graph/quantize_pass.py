"""A pass that puts integer matrices and their scales in the place of floating-point ones. Standard operators only.

int8: each row of the other factor is divided by its own scale (its largest magnitude / 127) and rounded to int8; the
product of the integers, times the scales of the columns, is in float32 and is multiplied by the rows' scales again.
Written as QuantizeLinear with scale 1 and DequantizeLinear around MatMul, it is one integer product in ONNX Runtime
(MatMulIntegerToFloat on the CPU) and one that TensorRT's parser takes. A row's result depends on that row alone, so a
request decodes the same in any company. Rows of a factor that several products share are rounded once.

int4: DequantizeLinear in blocks, which ONNX Runtime joins with MatMul to MatMulNBits; the other factor stays as it is.

Does not know any value, nor how the integers were chosen. The products of rounded rows are written here for TensorRT's
8-bit products as well (lopa.export.tensorrt.products), whose weights stay floats.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

MIN_MAGNITUDE = 1e-30
"""Stands for the largest magnitude of a row of zeros."""


@dataclass(frozen=True)
class EightBits:
    """A type of 8 bits that rows are rounded to."""

    dtype: ir.DataType
    greatest: float
    zero_point: int = 0

    def zeros(self, shape: tuple[int, ...] = ()) -> npt.NDArray[np.generic]:
        """Zero points, all the same."""
        return np.full(shape, self.zero_point, self.dtype.numpy())


# What ONNX Runtime's products on the CPU take.
AROUND_128 = EightBits(ir.DataType.UINT8, 127.0, zero_point=128)


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """What takes the place of one matrix [inputs, outputs]."""

    integers: ir.TensorProtocol
    """int8 or int4 [inputs, outputs]"""
    scales: ir.TensorProtocol
    """[outputs] for int8, [inputs / block, outputs] for int4"""

    @property
    def block(self) -> int:
        """Inputs that share an int4 scale."""
        return self.integers.shape.numpy()[0] // self.scales.shape.numpy()[0]


@dataclass(frozen=True, eq=False)
class _Rows:
    """A factor, each row divided by its scale and rounded."""

    rounded: ir.Value
    """As float32 [.., rows, inputs], of magnitudes up to the greatest of the type."""
    scales: ir.Value
    """float32 [.., rows, 1]"""


class QuantizedMatricesPass(ir.passes.InPlacePass):
    """Replaces MatMul(x, W) by the product with W's integers and scales, for every W of `matrices`, by name."""

    def __init__(self, matrices: Mapping[str, QuantizedMatrix]) -> None:
        super().__init__()
        self._matrices = matrices

    def requires(self, model: ir.Model) -> None:
        """Raise PreconditionError unless every matrix is an initializer that is only ever a MatMul's second factor."""
        for name in self._matrices:
            value = model.graph.initializers.get(name)
            if value is None:
                raise ir.passes.PreconditionError(f"the graph has no initializer {name} to quantize")
            others = [use.node.name for use in value.uses() if use.node.op_type != "MatMul" or use.idx != 1]
            if others or not value.uses():
                raise ir.passes.PreconditionError(f"{name} is not only the second factor of products: {others}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace; the initializers keep their names."""
        products = RoundedProducts(model, AROUND_128)
        for name, matrix in self._matrices.items():
            original = model.graph.initializers.pop(name)
            integers, scales = initializer(model, matrix.integers), initializer(model, matrix.scales)
            for use in tuple(original.uses()):
                if matrix.integers.dtype == ir.DataType.INT8:
                    weight = ir.node(
                        "DequantizeLinear", [integers, scales], {"axis": 1}, name=f"{use.node.name}/weight"
                    )
                    products.replace(use.node, [weight])
                else:
                    _multiply_int4(use.node, integers, scales, matrix.block)
        return ir.passes.PassResult(model, modified=bool(self._matrices))

    def ensures(self, model: ir.Model) -> None:
        """Raise PostconditionError unless every matrix is integers now, and only dequantized."""
        for name in self._matrices:
            value = model.graph.initializers[name]
            operators = {use.node.op_type for use in value.uses()}
            if value.dtype not in (ir.DataType.INT8, ir.DataType.INT4) or operators != {"DequantizeLinear"}:
                raise ir.passes.PostconditionError(f"{name} is {value.dtype}, used by {sorted(operators)}")


def _multiply_int4(product: ir.Node, integers: ir.Value, scales: ir.Value, block: int) -> None:
    """MatMul(x, W) -> MatMul(x, DequantizeLinear(W)), with `block` inputs a scale."""
    dequantized = ir.node(
        "DequantizeLinear", [integers, scales], {"axis": 0, "block_size": block}, name=f"{product.name}/weight"
    )
    product.prepend(dequantized)
    product.replace_input_with(1, dequantized.outputs[0])


class RoundedProducts:
    """Replaces products of a model by such whose rows are rounded to `kind`; rows and constants are made once."""

    def __init__(self, model: ir.Model, kind: EightBits) -> None:
        self._model = model
        self._kind = kind
        self._rows: dict[ir.Value, _Rows] = {}
        self._constants: dict[str, ir.Value] = {}

    def replace(self, product: ir.Node, weight: list[ir.Node]) -> None:
        """MatMul(x, W) -> MatMul(rounded rows of x, weight) * scales of the rows, all in float32.

        `weight` are the new nodes that make W; the last gives it in float32. Where the product's own type is another,
        a Cast follows, which is left out in front of one to float32.
        """
        factor, result = product.inputs[0], product.outputs[0]
        if factor is None or result.dtype is None:
            raise ir.passes.PassError(f"{product.name} has no first factor, or a result of unknown type")
        if factor not in self._rows:
            self._rows[factor] = self._rounded_rows(product, factor)
        rows = self._rows[factor]
        rounded = ir.node("MatMul", [rows.rounded, weight[-1].outputs[0]], name=product.name)
        scaled = ir.node("Mul", [rounded.outputs[0], rows.scales], name=f"{product.name}/scaled")
        product.prepend([*weight, rounded, scaled])
        if result.dtype == ir.DataType.FLOAT:
            _take_place(scaled.outputs[0], result)
        else:
            for widened in [use.node for use in result.uses() if _is_cast_to_float32(use.node)]:
                _take_place(scaled.outputs[0], widened.outputs[0])  # not rounded on the way
                self._model.graph.remove(widened, safe=True)
            if result.uses() or result.is_graph_output():
                narrowed = ir.node("Cast", [scaled.outputs[0]], {"to": result.dtype}, name=f"{product.name}/narrowed")
                product.prepend(narrowed)
                _take_place(narrowed.outputs[0], result)
        self._model.graph.remove(product, safe=True)

    def _rounded_rows(self, before: ir.Node, factor: ir.Value) -> _Rows:
        """New nodes in front of `before`, where `factor` is known."""
        owner = factor.producer()
        name = f"{owner.name if owner is not None else before.name}/rows"

        def add(op: str, inputs: list[ir.Value], attributes: dict[str, int] | None = None) -> ir.Value:
            node = ir.node(op, inputs, attributes or {}, name=f"{name}/{op}")
            before.prepend(node)
            return node.outputs[0]

        one, zero = self._constant("one", np.float32(1.0)), self._constant("zero", self._kind.zeros())
        x = factor if factor.dtype == ir.DataType.FLOAT else add("Cast", [factor], {"to": ir.DataType.FLOAT})
        last_axis = self._constant("last_axis", np.array([-1], np.int64))
        magnitude = add("ReduceMax", [add("Abs", [x]), last_axis], {"keepdims": 1})
        not_zero = add("Max", [magnitude, self._constant("least", np.float32(MIN_MAGNITUDE))])
        scales = add("Mul", [not_zero, self._constant("step", np.float32(1.0 / self._kind.greatest))])
        integers = add("QuantizeLinear", [add("Div", [x, scales]), one, zero])
        return _Rows(add("DequantizeLinear", [integers, one, zero]), scales)

    def _constant(self, key: str, number: np.generic | npt.NDArray[np.generic]) -> ir.Value:
        if key not in self._constants:
            self._constants[key] = initializer(self._model, ir.tensor(np.asarray(number), name=f"quantize.{key}"))
        return self._constants[key]


def initializer(model: ir.Model, tensor: ir.TensorProtocol) -> ir.Value:
    """A new one of the graph, under the tensor's name."""
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    model.graph.initializers.add(value)
    return value


def _take_place(new: ir.Value, old: ir.Value) -> None:
    new.name, new.shape, new.type = old.name, old.shape, old.type
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def _is_cast_to_float32(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT
