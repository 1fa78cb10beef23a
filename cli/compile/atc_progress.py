"""Shows that ATC is at work: a clock on a terminal, a line for every half minute elsewhere. On standard error."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from lopa.cli.program.verbosity import quiet

_EVERY = 30.0
"""Seconds between lines."""


class AtcProgress:
    """A lopa.export.ascend.build.Progress, to be called inside its `with` block."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=quiet())
        self._status: Status | None = None
        self._next_line = 0.0

    def __call__(self, stage: str, seconds: float) -> None:
        """`seconds` since the start of `stage`; 0 at its start."""
        if seconds == 0:
            self._next_line = _EVERY
            self._console.print(f"atc compiles {stage}; this takes minutes for each gear", soft_wrap=True)
        if self._console.is_terminal and not quiet():
            self._show(f"atc {stage}: {seconds:.0f} s")
        elif seconds >= self._next_line:
            self._next_line += _EVERY
            self._console.print(f"atc {stage}: {seconds:.0f} s", soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def _show(self, text: str) -> None:
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        self._status.update(text)
