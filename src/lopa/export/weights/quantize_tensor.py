"""Values to integers and scales, for matrices [inputs, outputs]. Pure; knows no files, no graph.

Every error is at most half a step (its scale), a step being as small as that allows without a zero point.
"""

import torch
from torch import Tensor

from lopa.export.weights.plan import BLOCK, Dtype, IntegerDtype
from lopa.export.weights.torch_dtypes import TORCH_DTYPES

_MIN_SCALE: dict[Dtype, float] = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
"""The least that the type holds without being flushed to zero: the scale where all values are (nearly) zero."""
_INT8_STEPS = 127
# An int4 reaches from -8 to 7, and rounding to either end may err by half a step as anywhere else.
_INT4_STEPS_BELOW, _INT4_STEPS_ABOVE = 8.5, 7.5


def int8_from_values(values: Tensor) -> tuple[Tensor, Tensor]:
    """Integers int8 [inputs, outputs], from -127 to 127, and scales float32 [outputs], of float32 [inputs, outputs]."""
    scales = (values.abs().amax(dim=0) / _INT8_STEPS).clamp_min(_MIN_SCALE["float32"])
    return (values / scales).round_().clamp_(-_INT8_STEPS, _INT8_STEPS).to(torch.int8), scales


def int4_from_values(values: Tensor, scale_dtype: Dtype) -> tuple[Tensor, Tensor]:
    """Integers int8 [inputs, outputs], from -8 to 7, and scales [inputs / BLOCK, outputs] of the type `scale_dtype`.

    `values` is float32 [inputs, outputs], with inputs a multiple of BLOCK; any number of whole blocks of a matrix.
    """
    inputs, outputs = values.shape
    blocks = values.reshape(inputs // BLOCK, BLOCK, outputs)
    lower, greatest = torch.aminmax(blocks, dim=1)
    scales = _rounded_up(torch.maximum(greatest / _INT4_STEPS_ABOVE, lower / -_INT4_STEPS_BELOW), scale_dtype)
    integers = (blocks / scales.float()[:, None]).round_().clamp_(-8, 7).to(torch.int8)
    return integers.reshape(inputs, outputs), scales


def bytes_from_int4(integers: Tensor) -> Tensor:
    """uint8: two numbers a byte, the first in the low half, in the order of the rows. Takes an even number of them."""
    halves = integers.reshape(-1).bitwise_and(15).to(torch.uint8)
    return halves[0::2] | (halves[1::2] << 4)


def integers_from_values(kind: IntegerDtype, values: Tensor, scale_dtype: Dtype) -> tuple[Tensor, Tensor]:
    """Integers int8 [inputs, outputs] and their scales, for all inputs of any number of a matrix's outputs.

    `values` is float32 [inputs, outputs]; scales of int4 are of the type `scale_dtype`, those of int8 always float32.
    """
    return int8_from_values(values) if kind == "int8" else int4_from_values(values, scale_dtype)


def _rounded_up(scales: Tensor, dtype: Dtype) -> Tensor:
    """`scales` in `dtype`, never less than they were: a smaller scale would clip the greatest value."""
    rounded = scales.to(TORCH_DTYPES[dtype])
    above = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))
    return torch.where(rounded.float() < scales, above, rounded).clamp_min(_MIN_SCALE[dtype])
