"""How long a running request waits for its next step while long prompts arrive, by how many rows may join a round.

Usage: python -m tools.reports.admission BUNDLE [--prompts N] [--rows N] [--slots N] [--rounds N] [--threads N]

One request that decides one token a step runs all the time. After its 20th step so many prompts of so many rows are
submitted at once, each for a short answer. In every round each limit is tried once, in turns; figures are medians over
the rounds. "Without a limit" is what an engine did before there was one: as many prompts join as there are slots.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import click
import numpy as np

from lopa.bench.table import Table, show_table
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.engine import MOST_PROMPT_ROWS, Engine
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.admission import JOINING_ROWS

_STEPS_BEFORE = 20
_LIMITS = (MOST_PROMPT_ROWS, 4 * JOINING_ROWS, JOINING_ROWS, JOINING_ROWS // 4)


@dataclass(frozen=True)
class Run:
    """What the long prompts did to the request that ran, and what waiting did to them."""

    quiet: float
    """Median seconds between two steps before they came."""
    longest: float
    """Longest time between two steps while they were there."""
    first: float
    """Seconds until the first of them had ended."""
    last: float
    """Seconds until all of them had."""


def run_of(decoder: Decoder, prompts: Sequence[Sequence[int]], answer: int, slots: int, limit: int) -> Run:
    """Decode `prompts` beside a request that runs all the time."""
    moments: list[float] = []
    ready = Event()

    def on_step(_: Step) -> None:
        moments.append(time.perf_counter())
        if len(moments) == _STEPS_BEFORE:
            ready.set()

    long_running = decoder.config(strategy="vanilla", max_new_tokens=1000, stop_at_eos=False, window="block_causal")
    short = decoder.config(max_new_tokens=answer, window="block_causal")
    with Engine(decoder, slots=slots, queue_limit=len(prompts), prompt_rows=0, joining_rows=limit) as engine:
        running = engine.submit(prompts[0][:16], long_running, on_step=on_step)
        ready.wait()
        began = time.perf_counter()
        ends = _ends(engine, prompts, short)
        if running.done:
            raise click.ClickException("the request that should run all the time has ended; take fewer prompts")
        running.cancel()
    gaps = np.diff([moment for moment in moments if moment <= ends[-1]])
    quiet = gaps[: _STEPS_BEFORE - 1]
    return Run(float(np.median(quiet)), float(gaps[_STEPS_BEFORE - 1 :].max()), ends[0] - began, ends[-1] - began)


def _ends(engine: Engine, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[float]:
    """When each prompt's answer had come, ascending."""
    ends: dict[int, float] = {}

    def on_step(number: int, _: Step) -> None:
        ends[number] = time.perf_counter()

    for handle in engine.submit_many(prompts, config, on_step=on_step):
        handle.result()
    return sorted(ends.values())


def row_of(limit: int, runs: Sequence[Run]) -> tuple[str, ...]:
    """A line of the table: medians."""
    figures = ([getattr(run, name) for run in runs] for name in ("quiet", "longest", "first", "last"))
    name = "without a limit" if limit == MOST_PROMPT_ROWS else str(limit)
    return (name, *(f"{statistics.median(each) * 1000:.0f}" for each in figures))


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--prompts", default=14, show_default=True, help="Long prompts that arrive at once.")
@click.option("--rows", default=900, show_default=True, help="Ids of each.")
@click.option("--answer", default=8, show_default=True, help="Positions of each answer.")
@click.option("--slots", default=8, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--threads", default=1, show_default=True)
def main(bundle: Path, prompts: int, rows: int, answer: int, slots: int, rounds: int, threads: int) -> None:
    """Print the table."""
    with Decoder.open(bundle, threads=threads) as decoder:
        vocabulary = decoder.bundle.manifest.dimensions.vocab_size
        ids = np.random.default_rng(0).integers(0, vocabulary, (prompts, rows)).tolist()
        runs: dict[int, list[Run]] = {limit: [] for limit in _LIMITS}
        run_of(decoder, ids[:2], answer, slots, JOINING_ROWS)  # memory that all others find ready
        for _ in range(rounds):
            for limit, found in runs.items():
                found.append(run_of(decoder, ids, answer, slots, limit))
    show_table(
        Table(
            f"{prompts} prompts of {rows} rows beside a running request, {slots} slots, {threads} thread(s), "
            f"medians of {rounds}, milliseconds",
            ("rows that may join a round", "a step before", "longest wait for a step", "first answer", "all answers"),
            tuple(row_of(limit, found) for limit, found in runs.items()),
        )
    )


if __name__ == "__main__":
    main()
