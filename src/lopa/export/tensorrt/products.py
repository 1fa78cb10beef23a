"""Products with 8-bit weights for TensorRT, as Q/DQ nodes. The bundle's weights stay in floating point.

MatMul(x, W) becomes MatMul(DQ(Q(x / rows)), DQ(Q(W))) * rows in float32, as in int8 bundles (quantize_pass). `rows`
are computed from the rows themselves, so that Q has the constant scale 1 that TensorRT requires, without calibration.
W's scales, one per column in int8 and one in fp8, are computed here. TensorRT quantizes W with them in the build.
"""

from collections.abc import Callable, Collection
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from lopa.export.graph.quantize_pass import E4M3, RoundedProducts, RoundingType, initializer
from lopa.runtime.contract import Float32
from lopa.runtime.contract.float8 import MIN_MAGNITUDE

Products = Literal["int8", "fp8"]

_MIN_FLOAT16 = 2.0**-14
"""Smallest normal float16. Smaller numbers lose digits."""
_CHUNK_ROWS = 1024
"""Rows of a weight that are converted to float32 at a time."""
_KINDS: dict[Products, RoundingType] = {
    "int8": RoundingType(ir.DataType.INT8, 127.0),
    "fp8": E4M3,
}


def quantize_products(
    model: onnx.ModelProto, products: Products, names: Collection[str], magnitudes: Callable[[str], Float32]
) -> None:
    """Rewrite, in place, every product with a matrix in `names`, which are floating-point weights.

    `magnitudes` returns the largest magnitude of each column of a weight, float32 [outputs] (magnitudes_of_columns).
    """
    changed = EightBitProductsPass(products, names, magnitudes)(ir.from_proto(model)).model
    model.CopyFrom(ir.to_proto(changed))


class EightBitProductsPass(ir.passes.InPlacePass):
    """Pass of quantize_products."""

    def __init__(self, products: Products, names: Collection[str], magnitudes: Callable[[str], Float32]) -> None:
        super().__init__()
        self._kind = _KINDS[products]
        self._per_column = products == "int8"
        self._names = names
        self._magnitudes = magnitudes

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the products. Weights and results keep their names."""
        rounded = RoundedProducts(model, self._kind)
        for product in [node for node in model.graph if node.op_type == "MatMul"]:
            weight = product.inputs[1]
            if weight is not None and weight.name in self._names:
                rounded.replace(product, self._rounded_weight(model, weight))
        return ir.passes.PassResult(model, modified=True)

    def _rounded_weight(self, model: ir.Model, weight: ir.Value) -> list[ir.Node]:
        """Return Q and DQ, which round the weight to 8 bits and output float32.

        Q has a scale of the weight's type, and DQ has the same scale in float32, which makes its output float32.
        """
        if weight.name is None or weight.dtype is None:
            raise ir.passes.PassError(f"weight {weight.name} of type {weight.dtype} needs a name and a type")
        name, magnitudes = weight.name, self._magnitudes(weight.name)
        largest = np.maximum(magnitudes if self._per_column else magnitudes.max(), np.float32(MIN_MAGNITUDE))
        exact = np.asarray(largest / np.float32(self._kind.max_magnitude), np.float32)
        if weight.dtype == ir.DataType.FLOAT16:
            exact = np.maximum(exact, np.float32(_MIN_FLOAT16))
        stored = exact.astype(weight.dtype.numpy())
        scale, wide_scale, zero = (
            initializer(model, ir.tensor(array, name=f"{name}/{suffix}"))
            for suffix, array in (
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
    """Return the largest magnitude of each weight column, float32 [outputs]. `widened` converts rows to float32."""
    largest = np.zeros(stored.shape[1], np.float32)
    for first in range(0, len(stored), _CHUNK_ROWS):
        np.maximum(largest, np.abs(widened(stored[first : first + _CHUNK_ROWS])).max(axis=0), out=largest)
    return largest
