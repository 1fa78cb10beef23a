"""Pass that replaces products with int4 matrices by products with int8 matrices.

The int8 products are faster and need twice the memory. The new matrices are not stored. A session computes them from
the packed ones when it opens (lopa.runtime.bundle.unpacked_int4) and passes them as initializers. The products have the
same form as in an int8 bundle (lopa.export.graph.quantize_pass), so rows are rounded to int8 too.
"""

import onnx_ir as ir

from lopa.export.graph.quantize_pass import AROUND_128, RoundedProducts
from lopa.export.graph.webgpu_pass import without_value
from lopa.runtime.bundle.manifest import scale_name


class UnpackedInt4Pass(ir.passes.InPlacePass):
    """Pass that replaces MatMul(x, DequantizeLinear(W int4, block scales)) by the product of rounded rows with int8 W.

    W keeps its name and becomes int8 [inputs, outputs]. Its scales, float32 [outputs], are named by `scale_name`.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the products, and remove the packed matrices and their scales."""
        products = RoundedProducts(model, AROUND_128)
        found = [value for value in model.graph.initializers.values() if value.dtype == ir.DataType.INT4]
        for packed in found:
            if packed.name is None or packed.shape is None:
                raise ir.passes.PassError(f"int4 matrix without a name or shape: {packed}")
            integers, scales = _given(packed.name, packed.shape.numpy())
            for use in tuple(packed.uses()):
                _replace(model, products, use.node, integers, scales)
            model.graph.initializers.pop(packed.name)
            model.graph.initializers.add(integers)
            model.graph.initializers.add(scales)
        return ir.passes.PassResult(model, modified=bool(found))

    def ensures(self, model: ir.Model) -> None:
        """Raise PostconditionError if the graph still has an int4 matrix."""
        left = [value.name for value in model.graph.initializers.values() if value.dtype == ir.DataType.INT4]
        if left:
            raise ir.passes.PostconditionError(f"still packed: {left}")


def _replace(
    model: ir.Model, products: RoundedProducts, dequantized: ir.Node, integers: ir.Value, scales: ir.Value
) -> None:
    """Replace the products with the matrix that `dequantized` outputs."""
    for use in tuple(dequantized.outputs[0].uses()):
        if use.node.op_type != "MatMul" or use.idx != 1:
            raise ir.passes.PassError(f"{integers.name} must only be the second factor of products: {use.node.name}")
        weight = ir.node("DequantizeLinear", [integers, scales], {"axis": 1}, name=dequantized.name)
        products.replace(use.node, [weight])
    block_scales = dequantized.inputs[1]
    model.graph.remove(dequantized, safe=True)
    if block_scales is not None and block_scales.name is not None and not block_scales.uses():
        model.graph.initializers.pop(block_scales.name)


def _given(name: str, shape: tuple[int, ...]) -> tuple[ir.Value, ir.Value]:
    """Return the int8 matrix and its scales as initializers without values."""
    return (
        without_value(name, ir.DataType.INT8, shape),
        without_value(scale_name(name), ir.DataType.FLOAT, shape[1:]),
    )
