"""How an export tells its caller how far it is. Does not know who listens."""

from typing import Protocol


class Progress(Protocol):
    """Called as the work goes on, often and from the exporting thread."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`stage` is a short phrase; `done` of `total` bytes are written (0 of 0 where bytes do not apply)."""


def silent(_stage: str, _done: int, _total: int) -> None:
    """Tells nobody."""
