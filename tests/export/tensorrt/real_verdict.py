"""Result of a real parser and builder of TensorRT for a model. One profile; every dynamic axis has size 4."""

import contextlib
import math
from types import ModuleType

import onnx
import onnx.shape_inference
from tests.export.tensorrt.parser_controls import Verdict

from lopa.runtime.tensorrt.tensorrt_library import garbage_collection_disabled, messages_logger

AXIS = 4


def verdict_of_model(trt: ModuleType, model: onnx.ModelProto) -> tuple[Verdict, str]:
    """Return the verdict and the message, empty if it builds. External data is not read."""
    with garbage_collection_disabled():
        return _verdict_of_model(trt, model)


def _verdict_of_model(trt: ModuleType, model: onnx.ModelProto) -> tuple[Verdict, str]:
    messages = messages_logger(trt)
    builder = trt.Builder(messages)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, messages)
    if not parser.parse(_with_typed_outputs(model).SerializeToString()):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        return "parser rejects", "; ".join(f"{error.node_operator()}: {error.desc()}" for error in errors)
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        if tensor.is_shape_tensor:
            profile.set_shape_input(tensor.name, *[[1] * math.prod(tensor.shape)] * 3)
        elif -1 in tensor.shape:
            profile.set_shape(tensor.name, *[[AXIS if size == -1 else size for size in tensor.shape]] * 3)
    config.add_optimization_profile(profile)
    if builder.build_serialized_network(network, config) is None:
        return "builder rejects", "; ".join(messages.kept)
    return "built", ""


def _with_typed_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give outputs the types that ONNX infers, or float32: an output without a type would be rejected for that."""
    typed = onnx.ModelProto.FromString(model.SerializeToString())
    with contextlib.suppress(onnx.shape_inference.InferenceError):  # the models may be invalid ONNX
        typed = onnx.shape_inference.infer_shapes(typed)
    for value in typed.graph.output:
        value.type.tensor_type.elem_type = value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    return typed
