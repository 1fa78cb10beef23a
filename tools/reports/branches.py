"""What a number of branches costs and brings on one device: seconds per answer, and the gain at which it breaks even.

Usage: python -m tools.reports.branches BUNDLE [--branches N]... [--limit N] [--rounds N] [--max-new-tokens N]

Every number of branches decodes every prompt once in a round, in random order; the figures are medians. Random
weights have steps of the right cost, and their tokens mean nothing: read the last two columns there.
"""

import random
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.machine import machine_now
from lopa.bench.progress import progress_shown
from lopa.bench.table import Table, show_table
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.result import DoneEvent
from lopa.tiny import EVAL


@dataclass(frozen=True)
class Answer:
    """One decode."""

    seconds: float
    """Of all its steps."""
    steps: int
    tokens: int


def answer_of(decoder: Decoder, prompt: str, config: GenerationConfig) -> Answer:
    """Decode `prompt`."""
    steps: list[Step] = []
    *_, done = decoder.stream(prompt, config, on_step=steps.append)
    assert isinstance(done, DoneEvent)
    return Answer(sum(sum(step.seconds.values()) for step in steps), len(steps), done.result.tokens)


def row_of(branches: int, answers: Sequence[Answer], alone: Sequence[Answer]) -> tuple[str, ...]:
    """`answers` with `branches` beside those with one branch to the same prompts in the same rounds.

    The last column is how many times as long a step takes, and so the gain in tokens a step at which it breaks even.
    """
    seconds = [answer.seconds / one.seconds for answer, one in zip(answers, alone, strict=True)]
    of_a_step = [ratio * one.steps / answer.steps for ratio, answer, one in zip(seconds, answers, alone, strict=True)]
    return (
        str(branches),
        f"{1e3 * statistics.median(answer.seconds for answer in answers):.1f}",
        f"{statistics.median(seconds):.2f}",
        f"{_tokens_a_step(answers):.2f}",
        f"{_tokens_a_step(answers) / _tokens_a_step(alone):.2f}",
        f"{1e3 * statistics.median(answer.seconds / answer.steps for answer in answers):.2f}",
        f"{statistics.median(of_a_step):.2f}",
    )


def _tokens_a_step(answers: Sequence[Answer]) -> float:
    return sum(answer.tokens for answer in answers) / sum(answer.steps for answer in answers)


def _turns(counts: Sequence[int], prompts: Sequence[str], rounds: int) -> Iterator[tuple[str, int]]:
    """Every prompt with every count, the counts in random order, round after round."""
    order = random.Random(0)
    for _ in range(rounds):
        for prompt in prompts:
            for count in order.sample(counts, len(counts)):
                yield prompt, count


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--device", default="cpu", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--branches",
    "counts",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 2, 4),
    show_default=True,
    help="Repeatable; 1 is always measured.",
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Prompts of each kind.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="[default: the bundle's]")
def main(
    bundle: Path,
    device: str,
    threads: int,
    counts: tuple[int, ...],
    limit: int,
    rounds: int,
    max_new_tokens: int | None,
) -> None:
    """Measure BUNDLE on one device."""
    prompts = [item.prompt for item in eval_set_from_jsonl(EVAL, limit=limit)]
    numbers = sorted({1, *counts})
    answers: dict[int, list[Answer]] = {count: [] for count in numbers}
    with Decoder.open(bundle, [device], threads=threads) as decoder:
        own = decoder.config() if max_new_tokens is None else decoder.config(max_new_tokens=max_new_tokens)
        configs = {count: decoder.config(own, branches=count) for count in numbers}
        deque(decoder.stream(prompts[0], configs[1]), maxlen=0)  # memory is there, and the engine is warm
        turns = list(_turns(numbers, prompts, rounds))
        with progress_shown("answers", len(turns)) as progress:
            for done, (prompt, count) in enumerate(turns, start=1):
                answers[count].append(answer_of(decoder, prompt, configs[count]))
                progress(done)
    machine = machine_now()
    versions = ", ".join(f"{name} {machine.versions[name]}" for name in ("python", "lopa-export", "onnxruntime"))
    show_table(
        Table(
            title=f"{device}, {threads} thread(s), {machine.cpu}, {machine.cores} cores, load {machine.load}; "
            f"{versions}; {len(prompts)} prompts, {rounds} rounds",
            columns=(
                "branches",
                "ms an answer",
                "against 1",
                "tokens a step",
                "gained",
                "ms a step",
                "must be gained",
            ),
            rows=tuple(row_of(count, answers[count], answers[1]) for count in numbers),
        )
    )


if __name__ == "__main__":
    main()
