"""Compare random decodes with and without exact speculative decoding: equal answers, and forwards saved.

Usage: python -m tools.measure speculative BUNDLE [--decodes N] [--seed N]

The exit code is 1 if two answers differ, or if speculation takes more forwards. `lopa-export bench quality --strategies
speculative-vanilla,..` measures the savings on evaluation prompts.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from lopa.bench.progress import show_progress
from lopa.bench.table import Table
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.strategy import STRATEGIES
from tools.random_configs import random_config, random_prompt
from tools.report import show_report

MAX_TOKENS = 96
"""Maximum tokens of a random decode, enough for a few blocks of any size."""
LOGPROB_ERROR = 1e-4
"""Tolerance of log-probabilities. Forwards with different numbers of branches may round differently."""


@dataclass(frozen=True)
class Pair:
    """One prompt decoded plainly and with exact speculative decoding."""

    alone: GenerationResult
    speculative: GenerationResult

    @property
    def differs(self) -> bool:
        """True if the answers differ in tokens, text, stop reason or log-probabilities."""
        one, other = self.alone, self.speculative
        return (
            (one.token_ids, one.text, one.stop_reason) != (other.token_ids, other.text, other.stop_reason)
            or (one.logprobs is None) != (other.logprobs is None)
            or not np.allclose(one.logprobs or (), other.logprobs or (), rtol=0, atol=LOGPROB_ERROR)
        )

    @property
    def saved(self) -> int:
        """Number of forwards that speculation saves."""
        return self.alone.steps - self.speculative.steps


def decoded(decoder: Decoder, prompt: str | Sequence[int], config: GenerationConfig) -> GenerationResult:
    """Return the result of one request."""
    return next(iter(decoder.generate([prompt], config)))


def pair_of(decoder: Decoder, prompt: str | Sequence[int], speculative: GenerationConfig) -> Pair:
    """Decode `prompt` with `speculative`, and with the strategy alone."""
    alone = replace(speculative, speculative=False, branches=1)
    return Pair(decoded(decoder, prompt, alone), decoded(decoder, prompt, speculative))


def random_speculative_config(rng: np.random.Generator, decoder: Decoder) -> GenerationConfig:
    """Return random options that support exact speculative decoding, with 2 to 8 branches."""
    while True:
        drawn = random_config(rng, decoder)
        try:
            config = replace(
                drawn,
                speculative=True,
                strategy=drawn.strategy if STRATEGIES[str(drawn.strategy)].from_one_branch else "d2f",
                branches=int(rng.integers(2, 9)),
                max_new_tokens=int(rng.integers(1, MAX_TOKENS + 1)),
                logprobs=bool(rng.random() < 0.3),
                reference=False,
            )
            decoder.params(config)
            return config
        except BadInputError:
            continue  # e.g. an unsupported strategy


def random_pairs(decoder: Decoder, seeds: Sequence[int]) -> Iterator[tuple[int, GenerationConfig, Pair]]:
    """Yield a random configuration per seed, and a random prompt decoded both ways."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        config = random_speculative_config(rng, decoder)
        yield seed, config, pair_of(decoder, random_prompt(rng, decoder), config)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--decodes", type=click.IntRange(min=1), default=100, show_default=True, help="Number of random decodes.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the first decode.")
def main(bundle: Path, decodes: int, seed: int) -> None:
    """Compare exact speculative decodes of BUNDLE with plain ones, on one thread."""
    by_strategy: dict[str, list[Pair]] = {}
    with Decoder.open(bundle, ["cpu"], threads=1) as decoder, show_progress("decodes", decodes) as progress:
        for number, config, pair in random_pairs(decoder, range(seed, seed + decodes)):
            by_strategy.setdefault(pair.speculative.params.strategy, []).append(pair)
            if pair.differs:
                click.echo(f"seed {number} differs: {config}", err=True)
            progress(number - seed + 1)
    all_pairs = [pair for pairs in by_strategy.values() for pair in pairs]
    rows = [_row(name, pairs) for name, pairs in (*sorted(by_strategy.items()), ("all", all_pairs))]
    columns = ("strategy", "decodes", "equal answers", "with more forwards", "forwards", "plain / speculative")
    show_report([Table(f"Random configs and prompts from seed {seed}", columns, tuple(rows))])
    if any(pair.differs or pair.saved < 0 for pair in all_pairs):
        sys.exit(1)


def _row(name: str, pairs: Sequence[Pair]) -> tuple[str, ...]:
    plain, speculative = sum(pair.alone.steps for pair in pairs), sum(pair.speculative.steps for pair in pairs)
    return (
        name,
        str(len(pairs)),
        str(sum(not pair.differs for pair in pairs)),
        str(sum(pair.saved < 0 for pair in pairs)),
        str(plain),
        f"{plain / speculative:.2f}",
    )
