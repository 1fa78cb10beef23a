"""Conversion of a bundle's standard graph for TensorRT's parser, in memory and without touching weights.

The conversion makes three changes, none of which affects results:

* Attention gets the parser's own attribute TRT_decomposable. If no fused kernel exists for its types and sizes,
  TensorRT may then use several kernels instead of rejecting the network.
* Rounded rows of an int8 bundle are uint8 around a zero point of 128, the type of ONNX Runtime's products on CPUs.
  TensorRT has signed integers without a zero point, so 128 is subtracted.
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
    _let_attention_decompose(model)
    _sign_rounded_rows(model)
    return model


def _batch_experts(model: onnx.ModelProto) -> None:
    """Replace the products of single experts by batched products."""
    joined = ir.from_proto(model)
    if join_experts(joined):
        named = ir.passes.Sequential(ExpertsPass(BatchedLayer), common.NameFixPass())
        model.CopyFrom(ir.to_proto(named(joined).model))


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
