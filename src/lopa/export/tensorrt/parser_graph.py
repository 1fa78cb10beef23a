"""A bundle's standard graph as TensorRT's parser is given it. Does not touch the bundle's own file, nor any weight.

Two things are changed, and neither changes what is computed:

- Attention gets the parser's own attribute TRT_decomposable: where no fused kernel exists for its types and sizes,
  TensorRT may then use several kernels instead of refusing the whole network.
- Rounded rows of an int8 bundle are uint8 around a zero point of 128, which is what ONNX Runtime's products on the CPU
  take. TensorRT has signed integers without a zero point: the same numbers, 128 less.
"""

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError

_MIDDLE = 128


def model_for_parser(bundle: Bundle) -> onnx.ModelProto:
    """The graph of `bundle`, which is of the standard dialect, for TensorRT; weights stay where they are.

    External data is named relative to the folder of the bundle's graph. Raises BadInputError when it is no ONNX.
    """
    try:
        model = onnx.load(bundle.graph, load_external_data=False)
    except Exception as error:  # protobuf's DecodeError is no public name of onnx
        raise BadInputError(
            f"{bundle.graph} cannot be read as ONNX: {error}",
            expected="the graph that lopa-export onnx wrote",
            remedy="copy the bundle again, or export the checkpoint again",
        ) from error
    let_attention_decompose(model)
    _sign_rounded_rows(model)
    return model


def let_attention_decompose(model: onnx.ModelProto) -> None:
    """Mark every Attention, those in functions too, so that a type or size without a fused kernel is no error."""
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        if node.op_type == "Attention":
            node.attribute.append(onnx.helper.make_attribute("TRT_decomposable", 1))


def _sign_rounded_rows(model: onnx.ModelProto) -> None:
    """Zero points of 128 in uint8 become 0 in int8, and so do the types of what is quantized with them."""
    signed = set()
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.UINT8 and (onnx.numpy_helper.to_array(tensor) == _MIDDLE).all():
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
