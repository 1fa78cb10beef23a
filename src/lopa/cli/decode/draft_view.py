"""Drafts of an answer while it is decoded: in place on a terminal, a line per step elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text


class DraftView:
    """Shows drafts on standard error, so that standard output holds the answer alone."""

    def __init__(self, *, enabled: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, transient=True) if enabled and self._console.is_terminal else None

    def show(self, step: int, text: str) -> None:
        """The whole draft after `step`."""
        line = Text(f"{step:4d} ", style="dim") + Text(text, style="default")
        if self._live is not None:
            self._live.update(line, refresh=True)
        else:
            self._console.print(Text(f"{step:4d} ") + Text(text.replace("\n", "\\n")), soft_wrap=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
