"""Measure the turns of a growing conversation with and without the prefix cache.

Usage: python -m tools.measure conversation BUNDLE [--turns N] [--message N] [--tokens N] [--rounds N] [--default
    NAME=VALUE ...] [-o FOLDER]

Every message of the user has random token ids, and every answer has a fixed length. The prompt of a turn is the whole
conversation so far, with the answers of the side without the cache. Both sides alternate turn by turn on one thread.
Their answers are compared. They may differ at near-ties, because sums of other shapes are rounded otherwise. Each round
is a new conversation, which shares nothing with the one before. The first round is a warm-up and does not count.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median

import click
import numpy as np

from lopa.bench.progress import show_progress
from lopa.bench.report import Run, make_folder, run_now
from lopa.bench.table import Table
from lopa.cli.options.decoding_options import defaults_from_texts
from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.observer import AdmissionReport, EndReport, RoundReport
from lopa.runtime.requests.request import Request
from tools.report import command_words, show_report


@dataclass(frozen=True)
class Turn:
    """One turn on one side."""

    prompt: int
    """Tokens of the prompt."""
    computed: int
    """Prompt tokens that were computed."""
    rows: int
    """Query tokens of all forwards: computed prompt tokens and positions of the answer."""
    seconds: float
    """Wall time."""
    processor_seconds: float
    """Time that this process computed, which other processes on the machine hardly change."""
    answer: tuple[int, ...]
    """Token ids."""


@dataclass(frozen=True)
class ConversationReport:
    """All measured rounds of both sides."""

    run: Run
    cache_tokens: int
    plain: tuple[tuple[Turn, ...], ...]
    """Turns of each round without the prefix cache."""
    cached: tuple[tuple[Turn, ...], ...]
    """Turns of each round with the prefix cache."""

    @property
    def equal_answers(self) -> int:
        """Number of turns in which both sides gave the same answer."""
        pairs = zip(chain(*self.plain), chain(*self.cached), strict=True)
        return sum(one.answer == other.answer for one, other in pairs)


class RowCounter:
    """Engine observer that counts query tokens."""

    def __init__(self) -> None:
        self.rows = 0

    def round_ended(self, report: RoundReport) -> None:
        """Count the query tokens of a round."""
        self.rows += report.real_rows

    def request_admitted(self, report: AdmissionReport) -> None:
        """Ignore an admission."""

    def request_ended(self, report: EndReport) -> None:
        """Ignore an end."""


class Side:
    """An engine with or without a prefix cache."""

    def __init__(self, decoder: Decoder, cache_tokens: int) -> None:
        self._counter = RowCounter()
        self.engine = Engine(decoder, prefix_cache_tokens=cache_tokens, observer=self._counter)

    def take_turn(self, ids: Sequence[int], config: GenerationConfig, salt: str) -> Turn:
        """Decode one turn. Conversations with other salts share nothing."""
        rows, began, computing = self._counter.rows, time.perf_counter(), time.process_time()
        (handle,) = self.engine.submit_many([Request(list(ids), config, salt)])
        result = handle.result()
        seconds, processor_seconds = time.perf_counter() - began, time.process_time() - computing
        while self.engine.status.running:  # the last round is reported after the result
            time.sleep(0.001)
        computed = len(ids) - result.cached_tokens
        return Turn(len(ids), computed, self._counter.rows - rows, seconds, processor_seconds, result.token_ids)


def measured_rounds(
    sides: Sequence[Side], config: GenerationConfig, messages: Iterator[list[int]], turns: int, salt: str
) -> tuple[tuple[Turn, ...], ...]:
    """Return the turns of one conversation on every side. It continues with the first side's answers."""
    ids: list[int] = []
    found: list[list[Turn]] = [[] for _ in sides]
    for _ in range(turns):
        ids += next(messages)
        for side, own in zip(sides, found, strict=True):
            own.append(side.take_turn(ids, config, salt))
        ids += found[0][-1].answer
    return tuple(map(tuple, found))


def table_of_report(report: ConversationReport) -> Table:
    """Return a row per turn, with medians over the rounds, and their sums."""
    rows = []
    sums = np.zeros(8)
    for number in range(len(report.plain[0])):
        sides = [[each[number] for each in rounds] for rounds in (report.plain, report.cached)]
        numbers = [
            *(median(turn.computed for turn in side) for side in sides),
            *(median(turn.rows for turn in side) for side in sides),
            *(median(turn.seconds for turn in side) for side in sides),
            *(median(turn.processor_seconds for turn in side) for side in sides),
        ]
        sums += numbers
        prompt = median(turn.prompt for turn in sides[0])
        rows.append((str(number + 1), f"{prompt:.0f}", *_cells(numbers)))
    rows.append(("all", "", *_cells(sums)))
    columns = (
        *(
            "turn",
            "prompt tokens",
            "computed, without",
            "computed, with",
            "query tokens, without",
            "query tokens, with",
        ),
        *("s, without", "s, with", "processor s, without", "processor s, with", "ratio"),
    )
    title = (
        f"A conversation with and without the prefix cache, {len(report.plain)} rounds, the same answer in "
        f"{report.equal_answers} of {sum(map(len, report.plain))} turns"
    )
    return Table(title, columns, tuple(rows))


def _cells(numbers: Sequence[float] | np.ndarray) -> tuple[str, ...]:
    """Return counts, seconds, and the ratio of processor seconds, as texts."""
    counts, seconds = numbers[:4], numbers[4:]
    ratio = seconds[-2] / seconds[-1]
    return (*(f"{count:.0f}" for count in counts), *(f"{each:.3f}" for each in seconds), f"{ratio:.2f}")


def _messages(seed: int, decoder: Decoder, length: int) -> Iterator[list[int]]:
    """Yield random ids without special tokens."""
    manifest = decoder.bundle.manifest
    special = {manifest.special_tokens.mask, manifest.special_tokens.pad, *manifest.special_tokens.ends}
    ids = np.array([each for each in range(manifest.dimensions.vocab_size) if each not in special])
    rng = np.random.default_rng(seed)
    while True:
        yield rng.choice(ids, length).tolist()


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--turns", type=click.IntRange(min=1), default=20, show_default=True, help="Turns of a conversation.")
@click.option("--message", type=click.IntRange(min=1), default=40, show_default=True, help="Tokens of a message.")
@click.option("--tokens", type=click.IntRange(min=1), default=32, show_default=True, help="Tokens of an answer.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Measured conversations.")
@click.option("--cache-tokens", type=int, default=2**16, show_default=True, help="Tokens in the prefix cache.")
@click.option("--default", "defaults", multiple=True, metavar="NAME=VALUE", help="Decoding option. Repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for conversation.json and .md.")
def main(
    bundle: Path,
    turns: int,
    message: int,
    tokens: int,
    rounds: int,
    cache_tokens: int,
    defaults: tuple[str, ...],
    output: Path | None,
) -> None:
    """Measure the turns of a conversation with and without the prefix cache."""
    if output is not None:
        make_folder(output)
    with Decoder.open(bundle, threads=1) as one, Decoder.open(bundle, threads=1) as other:
        run = run_now(one.bundle, device="cpu", threads=1, arguments=command_words())
        config = one.config(max_new_tokens=tokens, stop_at_eos=False, **defaults_from_texts(defaults))
        sides = [Side(one, 0), Side(other, cache_tokens)]
        found = []
        try:
            with show_progress("rounds", rounds + 1) as progress:
                for number in range(rounds + 1):
                    messages = _messages(number, one, message)
                    found.append(measured_rounds(sides, config, messages, turns, salt=str(number)))
                    progress(number + 1)
        finally:
            for side in sides:
                side.engine.close()
    if turns > 1 and not any(turn.computed < turn.prompt for turn in found[-1][1]):
        raise BadInputError(
            f"{bundle} with these options shares no rows between turns",
            expected="blocks counted from position 0 or a sliding block, and more tokens than a block",
            remedy="try --default alignment=absolute --default attention=block_causal",
        )
    report = ConversationReport(run, cache_tokens, *(tuple(each) for each in zip(*found[1:], strict=True)))
    show_report([table_of_report(report)], output=output, name="conversation", record=report)
