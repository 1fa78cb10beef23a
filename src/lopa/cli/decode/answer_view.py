"""An answer during decoding: its text as it is final, or its drafts, redrawn in place on a terminal."""

from collections.abc import Iterable
from contextlib import nullcontext

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent


def result_of_events(events: Iterable[Event], *, streams: bool = True, drafts: bool = False) -> GenerationResult:
    """Return the result of an answer. `streams` prints its text as it arrives.

    `drafts` shows its drafts on standard error, so that standard output has only the answer.
    """
    console = Console(stderr=True, highlight=False)
    live = Live(console=console, transient=True) if drafts and console.is_terminal else None
    with live or nullcontext():
        for event in events:
            if isinstance(event, DraftEvent) and live is not None:
                live.update(Text(f"{event.step:4d} ", style="dim") + Text(event.text, style="default"), refresh=True)
            elif isinstance(event, DraftEvent):
                console.print(Text(f"{event.step:4d} " + event.text.replace("\n", "\\n")), soft_wrap=True)
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
