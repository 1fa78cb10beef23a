"""In which type a kernel multiplies tiles: that of its tensors wherever there is a choice."""

import torch
import triton
import triton.language as tl

_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def factors_from_dtype(dtype: torch.dtype) -> tl.dtype:
    """Raises ValueError for a type that the kernels do not know.

    Triton's interpreter cannot multiply bfloat16; there it is float32, into which every product is summed anyway.
    """
    if dtype not in _TYPES:
        raise ValueError(f"received {dtype}, expected one of {', '.join(map(str, _TYPES))}")
    interpreted = dtype == torch.bfloat16 and triton.knobs.runtime.interpret
    return tl.float32 if interpreted else _TYPES[dtype]
