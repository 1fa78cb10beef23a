"""ONNX graphs of a single matrix product, as bytes, to measure a machine's rates.

The graphs are serialized field by field (onnx.proto, protocol buffers), because an install of the runtime alone has no
onnx package.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_IR_VERSION, _OPSET = 8, 17
_ELEMENT_TYPES = {np.dtype(np.float32): 1, np.dtype(np.uint8): 2, np.dtype(np.int8): 3, np.dtype(np.int32): 6}
"""Values of TensorProto.DataType."""

Array = npt.NDArray[Any]


def graph_of_product(operator: str, left: tuple[int, int], left_type: npt.DTypeLike, right: Array) -> bytes:
    """Return a graph of y = operator(x, `right`).

    The input x has shape `left` and type `left_type`. `right` is a constant that engines may pack. `operator` is MatMul
    (float32) or MatMulInteger (uint8 times int8 to int32).
    """
    result = np.dtype(np.float32 if operator == "MatMul" else np.int32)
    node = _text(1, "x") + _text(1, "right") + _text(2, "y") + _text(4, operator)
    tensor = _sizes(1, right.shape) + _number(2, _ELEMENT_TYPES[right.dtype]) + _text(8, "right")
    graph = (
        _bytes(1, node)
        + _text(2, "product")
        + _bytes(5, tensor + _bytes(9, right.tobytes()))
        + _bytes(11, _value("x", np.dtype(left_type), left))
        + _bytes(12, _value("y", result, (left[0], right.shape[1])))
    )
    return _number(1, _IR_VERSION) + _bytes(7, graph) + _bytes(8, _text(1, "") + _number(2, _OPSET))


def _value(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """Return a ValueInfoProto."""
    axes = b"".join(_bytes(1, _number(1, size)) for size in shape)
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, _ELEMENT_TYPES[dtype]) + _bytes(2, axes)))


def _sizes(field: int, values: Sequence[int]) -> bytes:
    return b"".join(_number(field, value) for value in values)


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    """Return a varint: seven bits per byte, lowest first. The high bit marks continuation."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
