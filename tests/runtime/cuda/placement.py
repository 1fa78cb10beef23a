"""Find the values of a graph that ONNX Runtime's CUDA provider would copy between host and device.

Shapes, and values computed from shapes alone, are on the host. Everything else is on the device. A value on the wrong
side is copied in every forward, and prevents CUDA graph capture. tools/vendors/check_cuda_provider.py compares this
with the real provider.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx

_SIZES = {"Shape", "Size"}
"""Operators whose outputs are on the host."""
_HOST_OPERANDS = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "ReduceMax": (1,),
    "ReduceSum": (1,),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}
"""Operands that the provider's kernels read on the host."""


@dataclass(frozen=True)
class CopiedValue:
    """A value that one side produces and the other reads."""

    value: str
    operator: str
    """Operator that reads the value."""


def copied_values(model: onnx.ModelProto) -> Iterator[CopiedValue]:
    """Yield all copied values. `model` needs no weights. Subgraphs and functions are not searched."""
    constant = {each.name for each in model.graph.initializer}
    inputs = {each.name for each in model.graph.input}
    host: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Constant":
            constant.update(node.output)
            continue
        operands = _HOST_OPERANDS.get(node.op_type, ())
        read = [(index, name) for index, name in enumerate(node.input) if name and name not in constant]
        sizes = [index for index, name in read if name in host]
        if sizes and not set(sizes) & set(operands) and all(name in host | inputs for _, name in read):
            host.update(node.output)
            continue
        for index, name in read:
            if (index in operands) != (name in host) and node.op_type not in _SIZES:
                yield CopiedValue(name, node.op_type)
        if node.op_type in _SIZES:
            host.update(node.output)
