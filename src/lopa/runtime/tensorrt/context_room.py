"""What execution contexts take of a GPU's memory, and whether there is room for one more. Knows no TensorRT.

Besides what lies between layers, which they share, contexts keep memory of their own: TensorRT tells nobody how much.
So it is measured when they are made, as the memory of the GPU that is free then and is not afterwards.
"""

from collections.abc import Callable
from typing import TypeVar

Context = TypeVar("Context")


class ContextRoom:
    """Measures the contexts of one engine, by profile."""

    def __init__(self, free_bytes: Callable[[], int], reserve: int) -> None:
        """`free_bytes` of the GPU now; `reserve` bytes of them are for others."""
        self._free_bytes = free_bytes
        self._reserve = reserve
        self._largest: dict[int, int] = {}
        """Bytes, by profile: other programs use the GPU too, so of several the largest."""

    def made(self, profile: int, make: Callable[[], Context]) -> Context:
        """What `make` makes, a context of `profile`."""
        before = self._free_bytes()
        context = make()
        taken = max(0, before - self._free_bytes())
        self._largest[profile] = max(taken, self._largest.get(profile, 0))
        return context

    def has_room(self, profile: int) -> bool:
        """Whether one more context of `profile`, of which there was one, leaves the reserve free."""
        return self._free_bytes() >= self._largest[profile] + self._reserve

    @property
    def needed(self) -> int:
        """Bytes of a context of each profile that there was, and of the reserve."""
        return sum(self._largest.values()) + self._reserve
