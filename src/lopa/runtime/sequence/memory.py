"""What a strategy remembers of a branch from step to step. Knows no strategy."""

from typing import Protocol, Self


class Memory(Protocol):
    """A frozen record; a branch has one of its own, which is copied with its tokens. None where nothing is kept."""

    def before(self, end: int) -> Self:
        """What is left of it when the positions from `end` on go."""
        ...
