"""Passes that replace products with quantized matrices, and fuse what rounds and scales their rows with its neighbors.

They know the forms of lopa.export.graph.quantize_pass. Products of another form, or of sizes without a kernel, stay.
"""

import onnx_ir as ir

from lopa.export.cuda_graph.nodes import DOMAIN, QUANTIZED, FusedInputs, insert, numbers, only_consumer, producer
from lopa.runtime.cpu_kernels.kernel_library import BLOCK

_MULTIPLE = 16
"""The kernels load 16 numbers of a matrix at once."""
_KINDS = {ir.DataType.INT8: 0, ir.DataType.FLOAT8E4M3FN: 1}
"""Attribute e4m3 by the type of a matrix of which rows are rounded."""
_SUFFIXES = {ir.DataType.FLOAT: "Float", ir.DataType.FLOAT16: "Float16", ir.DataType.BFLOAT16: "Bfloat16"}
_SCALED = {"SplitRotary": (8, 3), "SwiGlu": (2, 1), "SkipRmsNorm": (3, None)}
"""Operators that scale a product themselves: the number of inputs before scales, and the input of a second product."""
_ROUNDING = ("RmsNorm", "SkipRmsNorm", "SwiGlu")
"""Operators that can round their first output."""
_Rounded = dict[tuple[ir.Value, int], list[ir.Value]]


class QuantizedProductsPass(ir.passes.InPlacePass):
    """Pass that replaces products with int4 matrices by Int4Product, and others by RoundRows and ScaledProduct.

    Products of the same rows share RoundRows. ScaledProduct takes them with their scales, and a matrix with its own. It
    stands for two operators until ScalesPass.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the products."""
        rounded: _Rounded = {}
        for node in tuple(model.graph):
            weight = _weight(node)
            if weight is not None and "block_size" in weight.attributes:
                insert(node, "Int4Product", [node.inputs[0], *weight.inputs], [node.outputs[0], None])
            elif weight is not None:
                _replace_rounded(node, weight, rounded)
        return ir.passes.PassResult(model, modified=True)


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


def _replace_rounded(product: ir.Node, weight: ir.Node, rounded: _Rounded) -> None:
    """Replace a product of rounded rows if it has the known form."""
    widened = producer(product.inputs[0], "DequantizeLinear")
    quantized = producer(None if widened is None else widened.inputs[0], "QuantizeLinear")
    divided = producer(None if quantized is None else quantized.inputs[0], "Div")
    scaled = only_consumer(product.outputs[0], "Mul")
    if divided is None or scaled is None or scaled.inputs[1] is not divided.inputs[1]:
        return
    narrowed = only_consumer(scaled.outputs[0], "Cast")
    result = (scaled if narrowed is None else narrowed).outputs[0]
    cast = producer(divided.inputs[0], "Cast")
    x, stored = (divided if cast is None else cast).inputs[0], weight.inputs[0]
    if x is None or stored is None or x.dtype not in _SUFFIXES or result.dtype not in _SUFFIXES:
        return
    kind = _KINDS[stored.dtype or ir.DataType.UNDEFINED]
    if (x, kind) not in rounded:
        rounded[x, kind] = insert(product, "RoundRows", [x], [None, None], {"e4m3": kind})
    insert(product, "ScaledProduct", [*rounded[x, kind], *weight.inputs], [result], {"e4m3": kind})


class ScalesPass(ir.passes.InPlacePass):
    """Pass that replaces ScaledProduct by RoundedProduct, whose scales the operator behind takes, or ScaleRows."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes."""
        for node in [node for node in model.graph if (node.domain, node.op_type) == (DOMAIN, "ScaledProduct")]:
            rows, row_scales, weight, column_scales = node.inputs
            result, name = node.outputs[0], f"RoundedProduct{_SUFFIXES[node.outputs[0].dtype or ir.DataType.FLOAT]}"
            product = insert(node, name, [rows, weight], [None, None], numbers(node))[0]
            uses = [use.node for use in result.uses()]
            inputs = None if len(uses) != 1 else _inputs_with_product(uses[0], result, product)
            if inputs is None:
                insert(node, "ScaleRows", [product, row_scales, column_scales], [result])
            else:
                inputs += [row_scales, column_scales]
                insert(uses[0], uses[0].op_type, inputs, uses[0].outputs, numbers(uses[0]))
                model.graph.remove(uses[0], safe=True)
            model.graph.remove(node, safe=True)
        return ir.passes.PassResult(model, modified=True)


def _inputs_with_product(user: ir.Node, result: ir.Value, product: ir.Value) -> list[ir.Value | None] | None:
    """Return the inputs of an operator before scales, with `product` in place of `result`, or None if it takes none."""
    first, other = _SCALED.get(user.op_type, (0, None)) if user.domain == DOMAIN else (0, None)
    inputs = list(user.inputs)
    if len(inputs) > first or (other is not None and other < len(inputs) and inputs[other] is not None):
        return None
    if user.op_type == "SkipRmsNorm":  # the second term has scales
        (inputs[0],) = {*inputs[:2]} - {result} or {result}
        inputs[1] = product
    elif inputs[0] is result:
        inputs[0] = product
    else:
        return None
    return inputs + [None] * (first - len(inputs))


class RoundingPass(ir.passes.InPlacePass):
    """Pass that lets norms and SwiGlu round their rows themselves, where nothing else uses these."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes."""
        for node in [node for node in model.graph if (node.domain, node.op_type) == (DOMAIN, "RoundRows")]:
            rows = node.inputs[0]
            source = None if rows is None else rows.producer()
            if rows is None or source is None or source.domain != DOMAIN or source.op_type not in _ROUNDING:
                continue
            if len(rows.uses()) == 1 and not rows.is_graph_output() and source.outputs[0] is rows:
                outputs = [*node.outputs, *source.outputs[1:]]
                insert(source, f"Rounded{source.op_type}", source.inputs, outputs, numbers(source) | numbers(node))
                model.graph.remove((node, source), safe=True)
        return ir.passes.PassResult(model, modified=True)


class StoredBytesPass(ir.passes.InPlacePass):
    """Pass that takes the matrices of products as inputs of bytes, as those that are put together."""

    def __init__(self, fused: FusedInputs) -> None:
        super().__init__()
        self._fused = fused

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the initializers."""
        for value in tuple(model.graph.initializers.values()):
            users = {use.node for use in value.uses() if use.node.domain == DOMAIN and "Product" in use.node.op_type}
            if value.dtype in QUANTIZED and users:
                value.replace_all_uses_with(self._fused.stored_bytes(value))
        return ir.passes.PassResult(model, modified=True)
