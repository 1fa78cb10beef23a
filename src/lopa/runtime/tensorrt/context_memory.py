"""GPU memory of execution contexts, and whether another one fits.

Contexts share the memory for activations between layers, but each also has its own memory, whose size TensorRT does not
report. It is measured as the decrease of free GPU memory when a context is created.
"""

from collections.abc import Callable
from typing import TypeVar

Context = TypeVar("Context")


class ContextMemory:
    """Meter for the context memory of one engine, by profile."""

    def __init__(self, free_bytes: Callable[[], int], reserve: int) -> None:
        """Create a meter. `free_bytes` returns the GPU's free memory, of which `reserve` bytes are for other uses."""
        self._free_bytes = free_bytes
        self._reserve = reserve
        self._largest: dict[int, int] = {}
        """Largest measured size in bytes by profile. It is the maximum, because other programs use the GPU too."""

    def measure(self, profile: int, make: Callable[[], Context]) -> Context:
        """Create a context of `profile` with `make`, and measure it."""
        before = self._free_bytes()
        context = make()
        used = max(0, before - self._free_bytes())
        self._largest[profile] = max(used, self._largest.get(profile, 0))
        return context

    def has_room(self, profile: int) -> bool:
        """Return True if another context of `profile` leaves the reserve free. A context of `profile` must have been
        measured before."""
        return self._free_bytes() >= self._largest[profile] + self._reserve

    @property
    def needed(self) -> int:
        """Bytes of one context per measured profile, plus the reserve."""
        return sum(self._largest.values()) + self._reserve
