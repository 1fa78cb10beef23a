"""Progress reports of exports, builds and verifications."""

from typing import Protocol


class ProgressCallback(Protocol):
    """Callback for progress. It is called often, from the working thread."""

    def __call__(self, stage: str, done: int, total: int, /) -> None:
        """Report `done` of `total` bytes, steps or cases of `stage`, a short phrase. Both are 0 without a count."""


def silent(_stage: str, _done: int, _total: int) -> None:
    """Ignore the report."""
