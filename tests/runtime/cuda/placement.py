"""Which values of a graph ONNX Runtime's CUDA provider would copy between host and device, without the provider.

Sizes are on the host, and so is what is worked out from them alone; everything else is on the device. A value on the
wrong side is copied in every forward, and a session that captures CUDA graphs does not open. Held against the real
provider by tools/vendors/check_cuda_provider.py.
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
class Copied:
    """A value that one side makes and the other reads."""

    value: str
    operator: str
    """That reads it."""


def copied_values(model: onnx.ModelProto) -> Iterator[Copied]:
    """All of them; `model` may be without its weights. Operators with subgraphs and functions are not looked into."""
    constant = {each.name for each in model.graph.initializer}
    given = {each.name for each in model.graph.input}
    host: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Constant":
            constant.update(node.output)
            continue
        operands = _HOST_OPERANDS.get(node.op_type, ())
        read = [(index, name) for index, name in enumerate(node.input) if name and name not in constant]
        sizes = [index for index, name in read if name in host]
        if sizes and not set(sizes) & set(operands) and all(name in host | given for _, name in read):
            host.update(node.output)
            continue
        for index, name in read:
            if (index in operands) != (name in host) and node.op_type not in _SIZES:
                yield Copied(name, node.op_type)
        if node.op_type in _SIZES:
            host.update(node.output)
