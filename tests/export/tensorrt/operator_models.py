"""A model of one node for every operator of our graphs, with data of a given type."""

from collections.abc import Callable

import numpy as np
import onnx
from tests.export.tensorrt.one_node import F32, I64, attention_model, model_of_node

_X = [2, 4]
_ONE = np.int64([1])


def _unary(operator: str) -> Callable[[int], onnx.ModelProto]:
    return lambda dtype: model_of_node(operator, {"x": (dtype, _X)})


def _binary(operator: str, **attributes: object) -> Callable[[int], onnx.ModelProto]:
    return lambda dtype: model_of_node(operator, {"x": (dtype, [4, 4]), "z": (dtype, [4, 4])}, **attributes)  # type: ignore[arg-type]


def _with(operator: str, **constants: np.ndarray | np.generic) -> Callable[[int], onnx.ModelProto]:
    return lambda dtype: model_of_node(operator, {"x": (dtype, _X)}, constants)  # type: ignore[arg-type]


def _cast(dtype: int) -> onnx.ModelProto:
    to = onnx.TensorProto.INT32 if dtype == F32 else F32
    return model_of_node("Cast", {"x": (dtype, _X)}, to=to)


def _constant(dtype: int) -> onnx.ModelProto:
    """Return a Constant, widened if no other node can read its type."""
    value = onnx.helper.make_tensor("value", dtype, [4], [1, 0, 1, 1])
    nodes = [onnx.helper.make_node("Constant", [], ["c"], name="node", value=value)]
    if dtype in (onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT4E2M1, onnx.TensorProto.INT4):
        nodes += [onnx.helper.make_node("DequantizeLinear", ["c", "scale"], ["y"])]
    else:
        nodes += [onnx.helper.make_node("Concat", ["c", "c"], ["y"], axis=0)]
    scale = onnx.helper.make_tensor("scale", F32, [], [1])
    graph = onnx.helper.make_graph(nodes, "g", [], [onnx.helper.make_empty_tensor_value_info("y")], [scale])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])


def _range(dtype: int) -> onnx.ModelProto:
    if dtype == F32:
        return model_of_node("Range", {}, {"a": np.float32(0), "b": np.float32(4), "c": np.float32(1)})
    return model_of_node("Range", {"a": (dtype, []), "b": (dtype, []), "c": (dtype, [])})


def _rotary(dtype: int) -> onnx.ModelProto:
    return model_of_node(
        "RotaryEmbedding", {"x": (dtype, [1, 2, 4, 8]), "c": (dtype, [1, 4, 4]), "s": (dtype, [1, 4, 4])}
    )


MODELS: dict[str, Callable[[int], onnx.ModelProto]] = {
    **{name: _unary(name) for name in ("Abs", "Cos", "Exp", "Log", "Shape", "Sigmoid", "Sin", "Transpose")},
    **{name: _binary(name) for name in ("Add", "Div", "MatMul", "Max", "Mul", "Sub")},
    **{name: _with(name, axes=_ONE) for name in ("ReduceMax", "ReduceSum", "Unsqueeze")},
    "Attention": lambda dtype: attention_model(dtype=dtype),
    "Cast": _cast,
    "Concat": _binary("Concat", axis=0),
    "Constant": _constant,
    "DequantizeLinear": _with("DequantizeLinear", scale=np.float32(1)),
    "Expand": _with("Expand", shape=np.int64([3, 2, 4])),
    "Gather": lambda dtype: model_of_node("Gather", {"x": (dtype, _X), "i": (I64, [3])}),
    "GatherElements": lambda dtype: model_of_node("GatherElements", {"x": (dtype, _X), "i": (I64, [2, 4])}),
    "QuantizeLinear": _with("QuantizeLinear", scale=np.float32(1), zero=np.int8(0)),
    "RMSNormalization": lambda dtype: model_of_node("RMSNormalization", {"x": (dtype, _X), "s": (dtype, [4])}),
    "Range": _range,
    "Reshape": _with("Reshape", shape=np.int64([4, 2])),
    "RotaryEmbedding": _rotary,
    "Slice": _with("Slice", starts=np.int64([0]), ends=np.int64([2]), axes=_ONE),
    "Squeeze": lambda dtype: model_of_node("Squeeze", {"x": (dtype, [2, 1])}, {"axes": _ONE}),
    "TopK": lambda dtype: model_of_node("TopK", {"x": (dtype, _X)}, {"k": np.int64([2])}, outputs=("y", "i")),
}
"""Functions from a data type to a model, by operator."""
