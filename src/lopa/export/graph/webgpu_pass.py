"""Pass from a quantized portable graph to its twin for WebGPU (lopa.runtime.bundle.webgpu_twin)."""

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.graph.quantize_pass import replace_value
from lopa.runtime.bundle.manifest import scale_name
from lopa.runtime.bundle.webgpu_twin import WEBGPU_BLOCK

GIVEN_BY_SESSION = "given.by.session"
"""Placeholder for the file name of values that a session computes when it opens. No file of a bundle has this name."""
_MICROSOFT = "com.microsoft"
_FLOAT_PRODUCTS = 1
"""Accuracy level of MatMulNBits that leaves activations in the graph's type. Level 4 rounds them to 8 bits."""


class WebgpuPass(ir.passes.InPlacePass):
    """Pass that replaces MatMul(x, DequantizeLinear(W)) by MatMulNBits(x, W), for every name W in `names`.

    W keeps its name and becomes uint8 [outputs, blocks, bytes of a block]. Its scales become [outputs, blocks].
    """

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the products. Raises PassError for a matrix that has another use."""
        for name in self._names:
            _replace(model, name)
        if self._names:
            model.opset_imports[_MICROSOFT] = 1
            common.RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified=bool(self._names))

    def ensures(self, model: ir.Model) -> None:
        """Raise PostconditionError unless MatMulNBits has every matrix."""
        for name in self._names:
            found = {use.node.op_type for use in model.graph.initializers[name].uses()}
            if found != {"MatMulNBits"}:
                raise ir.passes.PostconditionError(f"{name} is used by {sorted(found)}")


def without_value(name: str, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.Value:
    """Return an initializer whose values a session passes in."""
    tensor = ir.ExternalTensor(GIVEN_BY_SESSION, None, None, dtype, shape=ir.Shape(shape), name=name)
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype), const_value=tensor)


def _replace(model: ir.Model, name: str) -> None:
    integers = model.graph.initializers[name]
    if integers.shape is None or integers.dtype not in (ir.DataType.INT4, ir.DataType.INT8):
        raise ir.passes.PassError(f"{name} is no quantized matrix")
    inputs, outputs = integers.shape.numpy()
    bits = 4 if integers.dtype == ir.DataType.INT4 else 8
    blocks = inputs // WEBGPU_BLOCK
    products = [product for use in integers.uses() for product in _products(use.node)]
    if not products or len({product.outputs[0].dtype for product in products}) > 1:
        raise ir.passes.PassError(f"{name} must only be the second factor of products of one type")
    dtype = products[0].outputs[0].dtype or ir.DataType.FLOAT
    matrix = without_value(name, ir.DataType.UINT8, (outputs, blocks, WEBGPU_BLOCK * bits // 8))
    scales = without_value(scale_name(name), dtype, (outputs, blocks))
    attributes = {"K": inputs, "N": outputs, "bits": bits, "block_size": WEBGPU_BLOCK}
    for product in products:
        new = ir.node(
            "MatMulNBits",
            [product.inputs[0], matrix, scales],
            {**attributes, "accuracy_level": _FLOAT_PRODUCTS},
            domain=_MICROSOFT,
            name=product.name,
        )
        replace_value(new.outputs[0], product.outputs[0])
        product.prepend(new)
        model.graph.remove(product, safe=True)
    common.RemoveUnusedNodesPass()(model)
    for value in (matrix, scales):
        model.graph.initializers.pop(value.name or "", None)
        model.graph.initializers.add(value)


def _products(node: ir.Node) -> list[ir.Node]:
    """Return the products with the floats of a DequantizeLinear, directly or through a Cast."""
    found = []
    for use in node.outputs[0].uses():
        if use.node.op_type == "Cast":
            found += _products(use.node)
        elif use.node.op_type == "MatMul" and use.idx == 1:
            found.append(use.node)
        else:
            raise ir.passes.PassError(f"{node.name} must only be the second factor of products: {use.node.name}")
    return found
