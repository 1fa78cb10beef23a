"""lopa-export demo: the embedded tiny checkpoint through the whole toolchain, with D2F and LoPA side by side."""

import itertools
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from lopa import tiny
from lopa.cli import onnx, verify
from lopa.cli.duel_view import DuelView
from lopa.runtime.decoder import Decoder
from lopa.runtime.result import DoneEvent, DraftEvent, GenerationResult

BRANCHES = 5
_STRATEGIES: dict[str, dict[str, Any]] = {
    "D2F": {"strategy": "d2f"},
    f"LoPA, {BRANCHES} branches": {"strategy": "lopa", "branches": BRANCHES},
}
_SECONDS_PER_FRAME = 0.15


@click.command(name="demo")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Keep the bundle here [default: it is removed].")
@click.option("--prompts", "count", type=click.IntRange(1, 300), default=6, show_default=True, help="How many prompts.")
@click.pass_context
def command(context: click.Context, output: Path | None, count: int) -> None:
    """Export the embedded tiny checkpoint, verify the bundle, and decode prompts with D2F and with LoPA."""
    console = Console(highlight=False)
    with ExitStack() as stack:
        folder = output or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tiny-bundle"
        console.rule("1. lopa-export onnx: checkpoint and D2F adapter to a bundle", align="left")
        context.invoke(onnx.command, checkpoint=tiny.CHECKPOINT, lora=tiny.ADAPTER, output=folder)
        console.rule("2. lopa-export verify: the bundle against another implementation", align="left")
        context.invoke(verify.command, bundle=folder, checkpoint=tiny.CHECKPOINT, lora=tiny.ADAPTER)
        console.rule("3. lopa-export generate: the same prompts with D2F and with LoPA", align="left")
        decoder = stack.enter_context(Decoder.open(folder))
        with tiny.EVAL.open(encoding="utf-8") as lines:
            prompts = [str(json.loads(line)["prompt"]) for line in itertools.islice(lines, count)]
        console.print(_table([_duel(decoder, prompt, console) for prompt in prompts]))
    if output is not None:
        console.print(f"The bundle is in {output}. Next: lopa-export inspect {output}")


def _duel(decoder: Decoder, prompt: str, console: Console) -> dict[str, GenerationResult]:
    """Decode `prompt` with every strategy in turn and show the drafts of each in its own column."""
    results: dict[str, GenerationResult] = {}
    with DuelView(console, prompt, list(_STRATEGIES)) as view:
        for name, options in _STRATEGIES.items():
            for event in decoder.stream(prompt, decoder.config(**options), drafts=True):
                if isinstance(event, DraftEvent):
                    view.show(name, event.step, event.text)
                    if console.is_terminal:
                        time.sleep(_SECONDS_PER_FRAME)  # the tiny model is too fast to watch
                elif isinstance(event, DoneEvent):
                    results[name] = event.result
                    view.done(name, event.result)
    return results


def _table(results: list[dict[str, GenerationResult]]) -> Table:
    table = Table("strategy", "steps", "tokens", "tokens per forward", title=f"{len(results)} prompts")
    for name in _STRATEGIES:
        steps = sum(result[name].steps for result in results)
        tokens = sum(result[name].tokens for result in results)
        table.add_row(name, str(steps), str(tokens), f"{tokens / steps:.2f}")
    return table
