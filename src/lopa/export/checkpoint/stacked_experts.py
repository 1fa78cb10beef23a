"""Experts that a checkpoint stacks in one tensor, as one tensor for each expert."""

import re
from collections.abc import Mapping

from lopa.export.checkpoint.safetensors_header import TensorHeader
from lopa.export.checkpoint.tensors import StoredTensor, check_equal

_STACKED = re.compile(r"(?P<module>.*\.experts)\.(?P<kind>gate_up|gate|up|down)_proj(\.weight)?")
_STACKED_AXES = 3


def with_single_experts(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return `stored` with a separate tensor for each expert of stacked ones, and for gate and up of fused ones.

    transformers 5 and VeOmni stack matrices [experts, outputs, inputs]. gate_up_proj has the gate's outputs first.
    """
    found = dict[str, StoredTensor]()
    for name, tensor in stored.items():
        match = _STACKED.fullmatch(name)
        if match is None or len(tensor.shape) != _STACKED_AXES:
            check_equal(found.setdefault(name, tensor), tensor)
            continue
        kinds = match["kind"].split("_")
        experts, outputs, inputs = tensor.shape
        length = tensor.header.length // (experts * len(kinds))
        shape = (outputs // len(kinds), inputs)
        for i in range(experts * len(kinds)):
            header = TensorHeader(tensor.header.dtype, shape, tensor.header.offset + i * length, length)
            part = f"{match['module']}.{i // len(kinds)}.{kinds[i % len(kinds)]}_proj.weight"
            expert = StoredTensor(part, tensor.file, header)
            check_equal(found.setdefault(part, expert), expert)
    return found
