"""Passes from a graph to its twin for WebGPU (lopa.runtime.bundle.webgpu_twin)."""

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.graph.expert_layer import LayerNodes
from lopa.export.graph.quantize_pass import replace_value
from lopa.runtime.bundle.manifest import TensorRecord, scale_name
from lopa.runtime.bundle.webgpu_twin import WEBGPU_BLOCK, is_reordered, parts_of_matrix

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


def twin_for_webgpu(model: ir.Model, records: Mapping[str, TensorRecord]) -> ir.Model:
    """Return the twin of a bundle's graph, which changes in place. `records` are the bundle's tensors."""
    quantized = {name: record for name, record in records.items() if is_reordered(record)}
    names = [part for name, record in quantized.items() for part in parts_of_matrix(name, record)]
    return ir.passes.Sequential(PlainAttentionPass(), WebgpuPass(names))(model).model


class PlainAttentionPass(ir.passes.InPlacePass):
    """Pass that replaces Attention, which WebGPU lacks, by products and a softmax in float32.

    Heads that share a key are more rows of that key, so keys and values are not repeated.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes. Raises PassError for attention without a mask, or with scaled scores."""
        nodes = [node for node in model.graph if node.op_type == "Attention"]
        for number, node in enumerate(nodes):
            _replace_attention(node, LayerNodes(model, node, f"attention.{number}"))
        return ir.passes.PassResult(model, modified=bool(nodes))


def _replace_attention(node: ir.Node, nodes: LayerNodes) -> None:
    query, keys, values, mask = [value for value in node.inputs if value is not None]
    scale, (heads, kv_heads) = node.attributes.get("scale"), (value.shape and value.shape[1] for value in (query, keys))
    if scale is None or scale.as_float() != 1 or not isinstance(heads, int) or not isinstance(kv_heads, int):
        raise ir.passes.PassError(f"{node.name} must have a scale of 1 and known heads")
    split, grouped = nodes.ints(0, heads, -1, 0), nodes.ints(0, kv_heads, -1, 0)
    turned = nodes.add("Transpose", [keys], "keys", {"perm": (0, 1, 3, 2)})
    scores = nodes.add("MatMul", [nodes.add("Reshape", [query, grouped], "query"), turned], "scores")
    scores = nodes.add("Reshape", [nodes.cast(scores, query.dtype, ir.DataType.FLOAT, "wide"), split], "heads")
    lowest = nodes.constant("lowest", np.array(np.finfo(np.float32).min))
    weights = nodes.add("Softmax", [nodes.add("Where", [mask, scores, lowest], "masked")], "weights", {"axis": -1})
    rows = nodes.add("Reshape", [nodes.cast(weights, ir.DataType.FLOAT, query.dtype, "narrow"), grouped], "rows")
    nodes.finish(nodes.add("Reshape", [nodes.add("MatMul", [rows, values], "mixed"), split], "mixed_heads"))


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
    widened = next(iter(integers.uses())).node
    dtype = products[0].outputs[0].dtype or (widened.inputs[1] and widened.inputs[1].dtype) or ir.DataType.FLOAT
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
