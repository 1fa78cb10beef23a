"""An answer during decoding: its text as it is final, or its drafts, redrawn in place on a terminal."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent


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


def result_of_events(events: Iterable[Event], *, streams: bool = True, drafts: bool = False) -> GenerationResult:
    """Return the result of an answer. `streams` prints its text as it arrives, and `drafts` shows its drafts."""
    with DraftView(enabled=drafts) as view:
        for event in events:
            if isinstance(event, DraftEvent):
                view.show(event.step, event.text)
            elif isinstance(event, TextEvent) and streams:
                click.echo(event.text, nl=False)
            elif isinstance(event, DoneEvent):
                result = event.result
    return result


def summary_of_result(result: GenerationResult) -> str:
    """Return tokens, steps, rates and the reason of the end in one line."""
    rate = result.tokens / result.seconds if result.seconds else 0.0
    return (
        f"{result.tokens} tokens in {result.steps} steps, {result.tokens_per_forward:.2f} tokens per forward, "
        f"{rate:.0f} tokens per second, stopped by {result.stop_reason}"
    )
