"""Passes that replace products with quantized matrices, and fuse what rounds and scales their rows with its neighbors.

They know the forms of lopa.export.graph.quantize_pass. Products of another form, or of sizes without a kernel, stay.
"""

import onnx_ir as ir

from lopa.export.cuda_graph.nodes import DOMAIN, FusedInputs, insert, only_consumer, producer
from lopa.runtime.cpu_kernels.kernel_library import BLOCK

_MULTIPLE = 16
"""The kernels load 16 numbers of a matrix at once."""
_KINDS = {ir.DataType.INT8: 0, ir.DataType.FLOAT8E4M3FN: 1}
"""Attribute e4m3 by the type of a matrix of which rows are rounded."""
_SUFFIXES = {ir.DataType.FLOAT: "Float", ir.DataType.FLOAT16: "Float16", ir.DataType.BFLOAT16: "Bfloat16"}
_PRODUCT_INPUTS = {"SplitRotary": (0,), "SwiGlu": (0,), "SkipRmsNorm": (1, 0)}
"""Operators that scale a product themselves, and which input it may be."""
_OTHER_PRODUCTS = {"SplitRotary": 3, "SwiGlu": 1}
"""Input with another product of the operator, which then cannot scale one."""
_SCALE_INPUTS = {"SplitRotary": 8, "SwiGlu": 2, "SkipRmsNorm": 3}
"""Number of inputs before the scales."""
_ROUNDING = ("RmsNorm", "SkipRmsNorm", "SwiGlu")
"""Operators that can round their first output."""


class QuantizedProductsPass(ir.passes.InPlacePass):
    """Pass that replaces products with int4 matrices by Int4Product, and others by RoundRows, RoundedProduct and
    ScaleRows. Products of the same rows share RoundRows."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the products."""
        rounded: dict[tuple[ir.Value, int], list[ir.Value]] = {}
        modified = False
        for node in tuple(model.graph):
            weight = _weight(node)
            if weight is None:
                continue
            if "block_size" in weight.attributes:
                insert(node, "Int4Product", [node.inputs[0], *weight.inputs[:2]], [node.outputs[0], None])
                modified = True
            else:
                modified |= _replace_rounded(node, weight, rounded)
        return ir.passes.PassResult(model, modified=modified)


def _weight(node: ir.Node) -> ir.Node | None:
    """Return the DequantizeLinear of a product's matrix, or None if there is none or no kernel for it."""
    if node.op_type != "MatMul" or node.domain:
        return None
    transposed = producer(node.inputs[1], "Transpose")
    weight = producer(node.inputs[1] if transposed is None else transposed.inputs[0], "DequantizeLinear")
    stored = None if weight is None or weight.inputs[0] is None else weight.inputs[0].const_value
    if weight is None or not isinstance(stored, ir.ExternalTensor) or len(weight.inputs) > 2:
        return None
    if any(size % _MULTIPLE for size in stored.shape.numpy()):
        return None
    if "block_size" in weight.attributes:
        fits = weight.attributes["block_size"].as_int() == BLOCK and stored.dtype == ir.DataType.INT4
    else:
        is_e4m3 = stored.dtype == ir.DataType.FLOAT8E4M3FN
        axis = weight.attributes["axis"].as_int()
        fits = stored.dtype in _KINDS and (transposed is not None) == is_e4m3 and axis == (0 if is_e4m3 else 1)
    return weight if fits else None


def _replace_rounded(product: ir.Node, weight: ir.Node, rounded: dict[tuple[ir.Value, int], list[ir.Value]]) -> bool:
    """Replace a product of rounded rows if it has the known form. Return True then."""
    widened = producer(product.inputs[0], "DequantizeLinear")
    quantized = producer(None if widened is None else widened.inputs[0], "QuantizeLinear")
    divided = producer(None if quantized is None else quantized.inputs[0], "Div")
    scaled = only_consumer(product.outputs[0], "Mul")
    if divided is None or scaled is None or scaled.inputs[1] is not divided.inputs[1]:
        return False
    narrowed = only_consumer(scaled.outputs[0], "Cast")
    result = (scaled if narrowed is None else narrowed).outputs[0]
    x = divided.inputs[0]
    cast = producer(x, "Cast")
    x = x if cast is None else cast.inputs[0]
    stored = weight.inputs[0]
    if x is None or stored is None or x.dtype not in _SUFFIXES or result.dtype is None or stored.dtype is None:
        return False
    attributes = {"e4m3": _KINDS[stored.dtype]}
    key = (x, attributes["e4m3"])
    if key not in rounded:
        rounded[key] = insert(product, "RoundRows", [x], [None, None], attributes)
    rows, scales = rounded[key]
    multiplied, _ = insert(
        product, f"RoundedProduct{_SUFFIXES[result.dtype]}", [rows, stored], [None, None], attributes
    )
    insert(product, "ScaleRows", [multiplied, scales, weight.inputs[1]], [result])
    return True


class ScalesPass(ir.passes.InPlacePass):
    """Pass that gives the scales of a product to the operator behind it."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes."""
        modified = False
        for node in tuple(model.graph):
            other = _OTHER_PRODUCTS.get(node.op_type, len(node.inputs))
            if node.domain != DOMAIN or (other < len(node.inputs) and node.inputs[other] is not None):
                continue
            for index in _PRODUCT_INPUTS.get(node.op_type, ()):
                product = node.inputs[index]
                scaling = producer(product, "ScaleRows", DOMAIN)
                if product is None or scaling is None or len(product.uses()) > 1:
                    continue
                inputs = list(node.inputs)
                inputs[index] = inputs[_PRODUCT_INPUTS[node.op_type][0]]  # the other term of a sum, or itself
                inputs[_PRODUCT_INPUTS[node.op_type][0]] = scaling.inputs[0]
                inputs += [None] * (_SCALE_INPUTS[node.op_type] - len(inputs))
                insert(node, node.op_type, [*inputs, *scaling.inputs[1:]], node.outputs, _numbers(node))
                model.graph.remove(node, safe=True)
                modified = True
                break
        return ir.passes.PassResult(model, modified=modified)


class RoundingPass(ir.passes.InPlacePass):
    """Pass that lets norms and SwiGlu round their rows themselves, where nothing else uses these."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes."""
        modified = False
        for node in tuple(model.graph):
            rows = node.inputs[0] if (node.domain, node.op_type) == (DOMAIN, "RoundRows") else None
            source = None if rows is None else rows.producer()
            if rows is None or source is None or source.domain != DOMAIN or source.op_type not in _ROUNDING:
                continue
            if len(rows.uses()) > 1 or rows.is_graph_output() or source.outputs[0] is not rows:
                continue
            attributes = _numbers(source) | _numbers(node)
            insert(source, f"Rounded{source.op_type}", source.inputs, [*node.outputs, *source.outputs[1:]], attributes)
            model.graph.remove((node, source), safe=True)
            modified = True
        return ir.passes.PassResult(model, modified=modified)


class StoredBytesPass(ir.passes.InPlacePass):
    """Pass that takes the matrices of products as inputs of bytes. ONNX Runtime has no operator with such matrices."""

    def __init__(self, fused: FusedInputs) -> None:
        super().__init__()
        self._fused = fused

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the initializers."""
        products = [
            node for node in model.graph if node.domain == DOMAIN and "Product" in node.op_type and node.inputs[1]
        ]
        inputs: dict[ir.Value, ir.Value] = {}
        for node in products:
            weight = node.inputs[1]
            if weight is not None and weight.is_initializer():
                inputs[weight] = inputs.get(weight) or self._fused.stored_bytes(weight)
                node.replace_input_with(1, inputs[weight])
        return ir.passes.PassResult(model, modified=bool(inputs))


def _numbers(node: ir.Node) -> dict[str, float]:
    return {name: attribute.value for name, attribute in node.attributes.items()}
