"""Two decodes of one prompt beside each other: live on a terminal, one paragraph each elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lopa.runtime.result import GenerationResult


class DuelView:
    """Columns named after the contestants, under the prompt."""

    def __init__(self, console: Console, prompt: str, names: list[str]) -> None:
        self._console = console
        self._prompt = prompt
        self._drafts = {name: Text("") for name in names}
        self._titles = dict.fromkeys(names, "waiting")
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def show(self, name: str, step: int, draft: str) -> None:
        """The draft of `name` after `step`."""
        self._drafts[name] = Text(draft)
        self._titles[name] = f"step {step}"
        self._refresh()

    def done(self, name: str, result: GenerationResult) -> None:
        """The final text of `name` and what it took."""
        self._drafts[name] = Text(result.text)
        self._titles[name] = f"{result.steps} steps, {result.tokens_per_forward:.2f} tokens per forward"
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
                self._console.print(Text(f"  {name}: {self._titles[name]}\n   ") + draft)

    def _refresh(self) -> None:
        if self._live is None:
            return
        columns = Table.grid(expand=True)
        for _ in self._drafts:
            columns.add_column(ratio=1)
        columns.add_row(
            *(Panel(draft, title=f"{name}: {self._titles[name]}", height=10) for name, draft in self._drafts.items())
        )
        self._live.update(Group(Panel(Text(self._prompt), title="prompt"), columns), refresh=True)
