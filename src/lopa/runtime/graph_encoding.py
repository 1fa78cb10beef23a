"""Small ONNX models as bytes.

They are serialized field by field (onnx.proto, protocol buffers), because an installation of the runtime alone has no
onnx package.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_IR_VERSION, _OPSET = 8, 17
_ELEMENT_TYPES = {
    np.dtype(np.float32): 1,
    np.dtype(np.uint8): 2,
    np.dtype(np.int8): 3,
    np.dtype(np.int32): 6,
    np.dtype(np.int64): 7,
}
"""Values of TensorProto.DataType."""


def encoded_model(nodes: Iterable[bytes], inputs: Iterable[bytes], outputs: Iterable[bytes]) -> bytes:
    """Return a ModelProto of opset 17 from encoded nodes and values."""
    graph = (
        b"".join(_bytes(1, node) for node in nodes)
        + _text(2, "graph")
        + b"".join(_bytes(11, value) for value in inputs)
        + b"".join(_bytes(12, value) for value in outputs)
    )
    return _number(1, _IR_VERSION) + _bytes(7, graph) + _bytes(8, _text(1, "") + _number(2, _OPSET))


def encoded_node(operator: str, inputs: Sequence[str], output: str) -> bytes:
    """Return a NodeProto without attributes."""
    return b"".join(_text(1, name) for name in inputs) + _text(2, output) + _text(4, operator)


def encoded_value(name: str, dtype: npt.DTypeLike, axes: Sequence[int | str]) -> bytes:
    """Return a ValueInfoProto. An axis that is a text is dynamic. Raises KeyError for other element types."""
    dimensions = b"".join(_bytes(1, _number(1, axis) if isinstance(axis, int) else _text(2, axis)) for axis in axes)
    tensor_type = _number(1, _ELEMENT_TYPES[np.dtype(dtype)]) + _bytes(2, dimensions)
    return _text(1, name) + _bytes(2, _bytes(1, tensor_type))


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    """Return a protocol buffer's integer: seven bits a byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
