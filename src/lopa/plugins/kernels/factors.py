"""Conversion of torch's types to the kernels' type names, and Triton's types for products."""

import torch
import triton
import triton.language as tl

from lopa.plugins.launch_sizes import Floats

_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
_NAMES: dict[torch.dtype, Floats] = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def floats_from_dtype(dtype: torch.dtype) -> Floats:
    """Return the kernels' name of a type. Raises ValueError for an unsupported one."""
    if dtype not in _NAMES:
        raise ValueError(f"received {dtype}, expected one of {', '.join(map(str, _NAMES))}")
    return _NAMES[dtype]


def factors_from_dtype(dtype: torch.dtype) -> tl.dtype:
    """Return the type of the products' factors for a type that `floats_from_dtype` accepts.

    Triton's interpreter cannot multiply bfloat16, so it gets float32, the type of the sums.
    """
    interpreted = dtype == torch.bfloat16 and triton.knobs.runtime.interpret
    return tl.float32 if interpreted else _TYPES[dtype]
