"""Quantization of matrices [inputs, outputs] to integers or FP8, and scales.

The error of an integer is at most half a step (the scale). The step is the smallest one possible without a zero point.
FP8 numbers are in the format E4M3. The largest of an output is 448.
"""

import torch
from torch import Tensor

from lopa.export.weights.plan import BLOCK, Dtype, QuantizedKind
from lopa.export.weights.torch_dtypes import TORCH_DTYPES
from lopa.runtime.contract.float8 import MAX_E4M3

_MIN_SCALE: dict[Dtype, float] = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
"""Smallest positive value that the type holds without being flushed to zero: the scale of (nearly) zero values."""
_INT8_STEPS = 127
# int4 ranges from -8 to 7. The rounding error is at most half a step, at the ends of the range as well.
_INT4_STEPS_BELOW, _INT4_STEPS_ABOVE = 8.5, 7.5


def int8_from_values(values: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize float32 [inputs, outputs] to int8 from -127 to 127, with scales float32 [outputs]."""
    scales = (values.abs().amax(dim=0) / _INT8_STEPS).clamp_min(_MIN_SCALE["float32"])
    return (values / scales).round_().clamp_(-_INT8_STEPS, _INT8_STEPS).to(torch.int8), scales


def int4_from_values(values: Tensor, scale_dtype: Dtype) -> tuple[Tensor, Tensor]:
    """Quantize to integers from -8 to 7, as int8 [inputs, outputs], with scales [inputs / BLOCK, outputs].

    `values` is float32 [inputs, outputs], where inputs is a multiple of BLOCK. Scales have the type `scale_dtype`.
    """
    inputs, outputs = values.shape
    blocks = values.reshape(inputs // BLOCK, BLOCK, outputs)
    scales = int4_scales(blocks, scale_dtype)
    integers = (blocks / scales.float()[:, None]).round_().clamp_(-8, 7).to(torch.int8)
    return integers.reshape(inputs, outputs), scales


def fp8_scales(values: Tensor) -> Tensor:
    """Return the smallest scales [outputs] with which float32 [inputs, outputs] fits E4M3."""
    return (values.abs().amax(dim=0) / MAX_E4M3).clamp_min(_MIN_SCALE["float32"])


def rounded_to_fp8(values: Tensor) -> Tensor:
    """Return the bytes of the nearest numbers in E4M3, at most MAX_E4M3, as int8 with the memory order of `values`."""
    return values.to(torch.float8_e4m3fn).view(torch.int8)


def float32_from_fp8(stored: Tensor) -> Tensor:
    """Return the values of the bytes of rounded_to_fp8."""
    return stored.view(torch.float8_e4m3fn).float()


def int4_scales(blocks: Tensor, dtype: Dtype) -> Tensor:
    """Return the smallest scales that clip no value of blocks [.., BLOCK, outputs]: [.., outputs] in `dtype`."""
    smallest, largest = torch.aminmax(blocks, dim=-2)
    return _rounded_up(torch.maximum(largest / _INT4_STEPS_ABOVE, smallest / -_INT4_STEPS_BELOW), dtype)


def bytes_from_int4(integers: Tensor) -> Tensor:
    """Return uint8 with two int4 values per byte, in row order, the first in the low half.

    The number of values must be even.
    """
    halves = integers.reshape(-1).bitwise_and(15).to(torch.uint8)
    return halves[0::2] | (halves[1::2] << 4)


def integers_from_values(kind: QuantizedKind, values: Tensor, scale_dtype: Dtype) -> tuple[Tensor, Tensor]:
    """Quantize float32 [inputs, outputs] to int8 [inputs, outputs], for FP8 its bytes, and their scales.

    `values` has complete columns of a matrix: all inputs of some or all outputs. Scales of int4 have the type
    `scale_dtype`, and others are float32.
    """
    if kind == "fp8":
        scales = fp8_scales(values)
        return rounded_to_fp8(values / scales), scales
    return int8_from_values(values) if kind == "int8" else int4_from_values(values, scale_dtype)


def _rounded_up(scales: Tensor, dtype: Dtype) -> Tensor:
    """Return `scales` in `dtype`, rounded up because a smaller scale would clip the largest value."""
    rounded = scales.to(TORCH_DTYPES[dtype])
    above = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))
    return torch.where(rounded.float() < scales, above, rounded).clamp_min(_MIN_SCALE[dtype])
