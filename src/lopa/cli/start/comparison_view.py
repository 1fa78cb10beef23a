"""View of several decodes of one prompt: live columns on a terminal, otherwise a paragraph each."""

from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

_MIN_LINES = 6
"""Minimum lines of a column, so that it does not grow with every block."""
_STYLES = {"right": "bold green", "wrong": "bold red"}


class ComparisonView:
    """A column per decode below the prompt. Long text is wrapped, not cut."""

    def __init__(self, console: Console, prompt: str, names: list[str]) -> None:
        self._console = console
        self._prompt = prompt
        self._drafts = dict.fromkeys(names, "")
        self._states = dict.fromkeys(names, Text("waiting"))
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def show(self, name: str, step: int, draft: str) -> None:
        """Show the draft of `name` after `step`."""
        self._drafts[name] = draft
        self._states[name] = Text(f"step {step}")
        self._refresh()

    def done(self, name: str, text: str, cost: str, verdict: str) -> None:
        """Show the final text of `name`, its cost as text, and the verdict."""
        self._drafts[name] = text
        self._states[name] = Text(f"{cost}, ").append(verdict, style=_STYLES.get(verdict, ""))
        self._refresh()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        elif kind is None:
            self._console.print(Text(self._prompt))
            for name, draft in self._drafts.items():
                self._console.print(Text(f"  {name}: {self._states[name].plain}\n   {draft}"))

    def _refresh(self) -> None:
        if self._live is None:
            return
        columns = Table(box=box.ROUNDED, expand=True, show_footer=True, header_style="bold", footer_style="")
        for name, state in self._states.items():
            columns.add_column(name, footer=state, ratio=1, overflow="fold")
        columns.add_row(*(_padded(draft) for draft in self._drafts.values()))
        self._live.update(Group(Panel(Text(self._prompt), title="prompt"), columns), refresh=True)


def _padded(draft: str) -> Text:
    return Text(draft + "\n" * max(0, _MIN_LINES - 1 - draft.count("\n")))
