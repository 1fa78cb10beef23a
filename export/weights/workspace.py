"""Memory that one tensor after another uses: fresh memory costs more time than what is done in it. Knows no values."""

import math

import torch


class Workspace:
    """One buffer, as large as the largest tensor so far."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor of any values. It takes the memory of the one given before, which ends with this call."""
        size = math.prod(shape) * dtype.itemsize
        if size > len(self._buffer):
            del self._buffer  # before the larger one exists
            self._buffer = torch.empty(size, dtype=torch.uint8)
        return self._buffer[:size].view(dtype).reshape(shape)
