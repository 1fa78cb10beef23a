"""Products with weights in 8 bits, as Q/DQ nodes for TensorRT. The bundle's weights stay floats.

MatMul(x, W) becomes MatMul(DQ(Q(x / rows)), DQ(Q(W))) * rows in float32, as in int8 bundles (quantize_pass). `rows`
are worked out from the rows themselves, so that Q has the constant scale 1 that TensorRT wants and nothing needs to be
calibrated. W's scales, for each column in int8 and one in fp8, are worked out here; TensorRT quantizes W by them when
it builds.

Knows ONNX and numbers, no TensorRT.
"""

from collections.abc import Callable, Collection
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from lopa.export.graph.quantize_pass import MIN_MAGNITUDE, EightBits, RoundedProducts, initializer
from lopa.runtime.contract import Float32

Products = Literal["int8", "fp8"]

_MIN_FLOAT16 = 2.0**-14
"""Smaller numbers lose digits in float16."""
_CHUNK_ROWS = 1024
"""Of a weight, widened to float32 at a time."""
_KINDS: dict[Products, EightBits] = {
    "int8": EightBits(ir.DataType.INT8, 127.0),
    "fp8": EightBits(ir.DataType.FLOAT8E4M3FN, 448.0),
}


def quantize_products(
    model: onnx.ModelProto, products: Products, names: Collection[str], magnitudes: Callable[[str], Float32]
) -> None:
    """Rewrite, in place, every product with a matrix among the weights `names`, which are floats.

    `magnitudes` gives the largest magnitude of each column of a weight, float32 [outputs] (magnitudes_of_columns).
    """
    changed = EightBitProductsPass(products, names, magnitudes)(ir.from_proto(model)).model
    model.CopyFrom(ir.to_proto(changed))


class EightBitProductsPass(ir.passes.InPlacePass):
    """As quantize_products."""

    def __init__(self, products: Products, names: Collection[str], magnitudes: Callable[[str], Float32]) -> None:
        super().__init__()
        self._kind = _KINDS[products]
        self._a_scale_for_each_column = products == "int8"
        self._names = names
        self._magnitudes = magnitudes

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace; weights and results keep their names."""
        rounded = RoundedProducts(model, self._kind)
        for product in [node for node in model.graph if node.op_type == "MatMul"]:
            weight = product.inputs[1]
            if weight is not None and weight.name in self._names:
                rounded.replace(product, self._rounded_weight(model, weight))
        return ir.passes.PassResult(model, modified=True)

    def _rounded_weight(self, model: ir.Model, weight: ir.Value) -> list[ir.Node]:
        """The weight in 8 bits, as float32: Q and DQ.

        Q takes a scale of the weight's own type and DQ the same numbers in float32, which make its output float32.
        """
        if weight.name is None or weight.dtype is None:
            raise ir.passes.PassError(f"a weight {weight.name} of the type {weight.dtype}")
        name, magnitudes = weight.name, self._magnitudes(weight.name)
        largest = np.maximum(
            magnitudes if self._a_scale_for_each_column else magnitudes.max(), np.float32(MIN_MAGNITUDE)
        )
        exact = np.asarray(largest / np.float32(self._kind.greatest), np.float32)
        if weight.dtype == ir.DataType.FLOAT16:
            exact = np.maximum(exact, np.float32(_MIN_FLOAT16))
        stored = exact.astype(weight.dtype.numpy())
        scale, wide_scale, zero = (
            initializer(model, ir.tensor(array, name=f"{name}/{what}"))
            for what, array in (
                ("scale", stored),
                ("scale_float32", stored.astype(np.float32)),
                ("zero", self._kind.zeros(exact.shape)),
            )
        )
        quantize = ir.node("QuantizeLinear", [weight, scale, zero], {"axis": 1}, name=f"{name}/QuantizeLinear")
        widen = ir.node(
            "DequantizeLinear",
            [quantize.outputs[0], wide_scale, zero],
            {"axis": 1},
            name=f"{name}/DequantizeLinear",
        )
        return [quantize, widen]


def magnitudes_of_columns(stored: npt.NDArray[np.generic], widened: Callable[..., Float32]) -> Float32:
    """float32 [outputs] of stored numbers [inputs, outputs]; `widened` makes float32 of some rows at a time."""
    largest = np.zeros(stored.shape[1], np.float32)
    for first in range(0, len(stored), _CHUNK_ROWS):
        np.maximum(largest, np.abs(widened(stored[first : first + _CHUNK_ROWS])).max(axis=0), out=largest)
    return largest
