"""How an export, a build or a verification tells its caller how far it is. Does not know who listens."""

from typing import Protocol


class Progress(Protocol):
    """Called as the work goes on, often, and from the thread that works."""

    def __call__(self, stage: str, done: int, total: int, /) -> None:
        """`stage` is a short phrase; `done` of `total` of its bytes, steps or cases are done (0 of 0: it has none)."""


def silent(_stage: str, _done: int, _total: int) -> None:
    """Tells nobody."""
