"""lopa-export demo: exports, verifies and decodes the embedded toy checkpoint, and compares D2F with LoPA."""

import itertools
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lopa import tiny
from lopa.bench.eval_set import SCORED_KIND, EvalItem, eval_set_from_jsonl, is_correct
from lopa.cli.decode.answer_view import result_of_events
from lopa.cli.make import onnx, verify
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.requests.result import GenerationResult

BRANCHES = 5
_STRATEGIES: dict[str, dict[str, Any]] = {
    "D2F": {"strategy": "d2f"},
    f"LoPA, {BRANCHES} branches": {"strategy": "lopa", "branches": BRANCHES},
}
_SECONDS_PER_FRAME = 0.15
_STYLES = {"right": "bold green", "wrong": "bold red"}
_TOY = (
    "The embedded model is a toy of 2.4 million parameters for trying the tools. It is often wrong, with any strategy."
)


@dataclass(frozen=True)
class Decoded:
    """An answer, the seconds of its steps, and a verdict: "right", "wrong" or "not judged"."""

    result: GenerationResult
    seconds: float
    verdict: str

    @property
    def cost(self) -> str:
        """Steps, tokens per forward and seconds as text."""
        result = self.result
        return f"{result.steps} steps, {result.tokens_per_forward:.2f} tokens per forward, {self.seconds:.2f} s"


@click.command(
    name="demo",
    cls=GroupedCommand,
    examples=("lopa-export demo --prompts 3 -o TINY-BUNDLE",),
)
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    show_default="a temporary folder",
    help="Folder for the bundle, kept afterwards.",
)
@option("--prompts", "count", type=click.IntRange(1, 300), default=6, help="Number of prompts.")
@click.pass_context
def command(context: click.Context, output: Path | None, count: int) -> None:
    """Export the embedded toy model, verify the bundle, and decode prompts with D2F and with LoPA.

    D2F and LoPA answer the same prompts with the same model, so that their time and their passes through the model
    (forwards) can be compared. The model has 2.4 million parameters and is often wrong. Each answer is marked right or
    wrong.
    """
    console = Console(highlight=False)
    with ExitStack() as stack:
        folder = output or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tiny-bundle"
        console.rule("1. lopa-export onnx: checkpoint and D2F adapter to a bundle", align="left")
        context.invoke(onnx.command, checkpoint=tiny.CHECKPOINT, lora=tiny.ADAPTER, output=folder)
        console.rule("2. lopa-export verify: the bundle against another implementation", align="left")
        context.invoke(verify.command, bundle=folder, checkpoint=tiny.CHECKPOINT, lora=tiny.ADAPTER)
        console.rule("3. lopa-export generate: the same prompts with D2F and with LoPA", align="left")
        console.print(_TOY)
        decoder = stack.enter_context(Decoder.open(folder))
        items = list(itertools.islice(eval_set_from_jsonl(tiny.EVAL), count))
        for options in _STRATEGIES.values():  # the first forwards of an engine are slower
            decoder.generate(items[0].prompt, **options)
        console.print(table_of_results([_compare(decoder, item, console) for item in items]))
    if output is not None:
        console.print(f"The bundle is in {output}. Next: lopa-export inspect {output}")


def _compare(decoder: Decoder, item: EvalItem, console: Console) -> dict[str, Decoded]:
    """Decode a prompt with every strategy in turn. A terminal shows the drafts of each."""
    found: dict[str, Decoded] = {}
    console.print(Text(item.prompt))
    for name, options in _STRATEGIES.items():
        seconds: list[float] = []

        def on_step(step: Step, seconds: list[float] = seconds) -> None:
            seconds.append(sum(step.seconds.values()))
            if console.is_terminal:
                time.sleep(_SECONDS_PER_FRAME)  # the tiny model is too fast to watch

        events = decoder.stream(item.prompt, decoder.config(**options), drafts=True, on_step=on_step)
        result = result_of_events(events, streams=False, drafts=console.is_terminal)
        found[name] = Decoded(result, sum(seconds), _verdict(result.text, item))
        console.print(text_of_answer(name, found[name]))
    return found


def text_of_answer(name: str, found: Decoded) -> Text:
    """Return the strategy's name, the cost of its answer, the verdict and the answer."""
    verdict = Text(found.verdict, style=_STYLES.get(found.verdict, ""))
    return Text(f"  {name}: {found.cost}, ").append_text(verdict).append(f"\n   {found.result.text}")


def _verdict(text: str, item: EvalItem) -> str:
    if item.kind != SCORED_KIND:
        return "right" if text.strip() == item.answer.strip() else "not judged"
    return "right" if is_correct(text, item.answer) else "wrong"


def table_of_results(comparisons: list[dict[str, Decoded]]) -> Table:
    """Return a table of sums over all prompts, with a row per strategy."""
    title = f"{len(comparisons)} prompt{'' if len(comparisons) == 1 else 's'}"
    table = Table("strategy", "steps", "tokens", "tokens per forward", "seconds", "right", title=title)
    for name in comparisons[0]:
        rows = [comparison[name] for comparison in comparisons]
        steps = sum(row.result.steps for row in rows)
        tokens = sum(row.result.tokens for row in rows)
        right, judged = (sum(row.verdict in kinds for row in rows) for kinds in (("right",), ("right", "wrong")))
        table.add_row(
            name,
            str(steps),
            str(tokens),
            f"{tokens / steps:.2f}",
            f"{sum(row.seconds for row in rows):.2f}",
            f"{right} of {judged}",
        )
    return table
