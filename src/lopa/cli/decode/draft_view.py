"""Drafts of an answer during decoding: redrawn in place on a terminal, otherwise a line per step."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text


class DraftView:
    """View of drafts on standard error, so that standard output has only the answer."""

    def __init__(self, *, enabled: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, transient=True) if enabled and self._console.is_terminal else None

    def show(self, step: int, text: str) -> None:
        """Show the whole draft after `step`."""
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
