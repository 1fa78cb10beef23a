"""Conversion of a bundle's standard graph for TensorRT's parser, in memory and without touching weights.

The conversion makes four changes, none of which affects results:

* Attention gets the parser's own attribute TRT_decomposable. If no fused kernel exists for its types and sizes,
  TensorRT may then use several kernels instead of rejecting the network.
* Rounded rows of an int8 bundle are uint8 around a zero point of 128, the type of ONNX Runtime's products on CPUs.
  TensorRT has signed integers without a zero point, so 128 is subtracted.
* Scales of FP8 matrices follow their products, because TensorRT has one scale for all of such a matrix.
* Experts become batched products, because a build of one product per expert and matrix takes ten times as long.
"""

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx_ir as ir
from onnx_ir.passes import common

from lopa.export.graph.expert_batched import BatchedLayer
from lopa.export.graph.expert_forms import join_experts
from lopa.export.graph.expert_layer import ExpertsPass
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError

_ZERO_POINT = 128


def model_for_parser(bundle: Bundle) -> onnx.ModelProto:
    """Return the standard graph of `bundle` for TensorRT, without its weights.

    External data is relative to the folder of the bundle's graph. Raises BadInputError if the file is not ONNX.
    """
    try:
        model = onnx.load(bundle.graph, load_external_data=False)
    except Exception as error:  # onnx does not export protobuf's DecodeError
        raise BadInputError(
            f"{bundle.graph} cannot be read as ONNX: {error}",
            expected="the graph that lopa-export onnx wrote",
            remedy="copy the bundle again, or export the checkpoint again",
        ) from error
    _batch_experts(model)
    _scale_fp8_products(model)
    _let_attention_decompose(model)
    _sign_rounded_rows(model)
    return model


def _batch_experts(model: onnx.ModelProto) -> None:
    """Replace the products of single experts by batched products."""
    joined = ir.from_proto(model)
    if join_experts(joined):
        named = ir.passes.Sequential(ExpertsPass(BatchedLayer), common.NameFixPass())
        model.CopyFrom(ir.to_proto(named(joined).model))


def _scale_fp8_products(model: onnx.ModelProto) -> None:
    """Multiply products with FP8 matrices by the scales of their outputs, in place of the matrices."""
    changed = ir.from_proto(model)
    products = [node for node in changed.graph if node.op_type == "MatMul" and _fp8_weight(node) is not None]
    for product in products:
        weight = _fp8_weight(product)
        assert weight is not None
        result = product.outputs[0]
        scaled = ir.node("Mul", [result, weight.inputs[1]], name=f"{product.name}/columns")
        product.append(scaled)
        ir.convenience.replace_all_uses_with(result, scaled.outputs[0])
        scaled.replace_input_with(0, result)
        weight.replace_input_with(1, changed.graph.initializers["quantize.one"])
        weight.attributes.pop("axis")
    if products:
        model.CopyFrom(ir.to_proto(changed))


def _fp8_weight(product: ir.Node) -> ir.Node | None:
    """Return the DequantizeLinear of an FP8 matrix with a scale for each output that `product` multiplies by."""
    transposed = product.inputs[1].producer() if product.inputs[1] is not None else None
    value = transposed.inputs[0] if transposed is not None and transposed.op_type == "Transpose" else None
    weight = value.producer() if value is not None else None
    return (
        weight if weight is not None and weight.op_type == "DequantizeLinear" and "axis" in weight.attributes else None
    )


def _let_attention_decompose(model: onnx.ModelProto) -> None:
    """Mark every Attention, also in functions, so that types and sizes without a fused kernel are no error."""
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        if node.op_type == "Attention":
            node.attribute.append(onnx.helper.make_attribute("TRT_decomposable", 1))


def _sign_rounded_rows(model: onnx.ModelProto) -> None:
    """Replace zero points of 128 in uint8 by 0 in int8, with the types of values that are quantized with them."""
    signed = set()
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.UINT8 and (onnx.numpy_helper.to_array(tensor) == _ZERO_POINT).all():
            zeros = np.zeros(tuple(tensor.dims), np.int8)
            tensor.CopyFrom(onnx.numpy_helper.from_array(zeros, tensor.name))
            signed.add(tensor.name)
    quantized = {
        node.output[0]
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and len(node.input) > 2 and node.input[2] in signed
    }
    for value in model.graph.value_info:
        if value.name in signed | quantized:
            value.type.tensor_type.elem_type = onnx.TensorProto.INT8
