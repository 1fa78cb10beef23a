"""Whether lossless decodes have the tokens of the rule alone, and how many forwards they save.

Usage: python -m tools.reports.lossless BUNDLE [--strategy NAME]... [--limit N] [--decodes N] [--seed N]

First strategies with 2, 3 and 4 branches on evaluation prompts; then so many random configs and prompts, each decoded
twice. Exits with 1 where two decodes differ.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.progress import progress_shown
from lopa.bench.table import Table, show_table
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.result import DoneEvent, GenerationResult
from lopa.runtime.strategy import STRATEGIES as ALL_STRATEGIES
from lopa.tiny import EVAL
from tools.random_configs import random_config, random_prompt

STRATEGIES = tuple(name for name, each in ALL_STRATEGIES.items() if each.from_one_branch)
BRANCHES = (2, 3, 4)
MOST_TOKENS = 96
"""Of a random decode: a few blocks of any size."""
LOGPROB_ERROR = 1e-4
"""Between forwards with more and with fewer branches, whose sums may round their last bits otherwise."""


@dataclass(frozen=True)
class Pair:
    """One prompt decoded by the rule alone and lossless."""

    alone: GenerationResult
    lossless: GenerationResult

    @property
    def differs(self) -> bool:
        """In anything that the answer is."""
        one, other = self.alone, self.lossless
        return (
            (one.token_ids, one.text, one.stop_reason) != (other.token_ids, other.text, other.stop_reason)
            or (one.logprobs is None) != (other.logprobs is None)
            or not np.allclose(one.logprobs or (), other.logprobs or (), rtol=0, atol=LOGPROB_ERROR)
        )


def decoded(decoder: Decoder, prompt: str | Sequence[int], config: GenerationConfig) -> GenerationResult:
    """The result of one request."""
    *_, done = decoder.stream(prompt, config)
    assert isinstance(done, DoneEvent)
    return done.result


def pair_of(decoder: Decoder, prompt: str | Sequence[int], lossless: GenerationConfig) -> Pair:
    """`prompt` decoded as `lossless` says, and by the rule alone."""
    alone = replace(lossless, lossless=False, branches=1)
    return Pair(decoded(decoder, prompt, alone), decoded(decoder, prompt, lossless))


def random_lossless_config(rng: np.random.Generator, decoder: Decoder) -> GenerationConfig:
    """Any options with which lossless is not refused, 2 to 8 branches."""
    while True:
        drawn = random_config(rng, decoder)
        try:
            config = replace(
                drawn,
                lossless=True,
                strategy=drawn.strategy if drawn.strategy in STRATEGIES else "d2f",
                branches=int(rng.integers(2, 9)),
                max_new_tokens=int(rng.integers(1, MOST_TOKENS + 1)),
                logprobs=bool(rng.random() < 0.3),
                published=False,
            )
            decoder.plan(config)
            return config
        except BadInputError:
            continue  # of another strategy, say


def random_pairs(decoder: Decoder, seeds: Sequence[int]) -> Iterator[tuple[int, GenerationConfig, Pair]]:
    """A random config and prompt of each seed, decoded both ways."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        config = random_lossless_config(rng, decoder)
        yield seed, config, pair_of(decoder, random_prompt(rng, decoder), config)


def row_of(name: str, pairs: dict[int, list[Pair]]) -> tuple[str, ...]:
    """Forwards of the rule alone; of each number of branches how many times fewer and less time, and equal answers."""
    alone = sum(pair.alone.steps for pair in pairs[BRANCHES[0]])
    cells = []
    for own in pairs.values():
        equal = sum(not pair.differs for pair in own)
        forwards = alone / sum(pair.lossless.steps for pair in own)
        seconds = sum(pair.alone.seconds for pair in own) / sum(pair.lossless.seconds for pair in own)
        cells.append(f"{forwards:.2f}, {seconds:.2f} ({equal} of {len(own)})")
    return name, str(alone), *cells


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice(STRATEGIES),
    multiple=True,
    default=("vanilla", "sequential", "threshold", "d2f"),
    show_default=True,
    help="Repeatable.",
)
@click.option("--decodes", type=click.IntRange(min=0), default=100, show_default=True, help="Random ones.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the first random one.")
@click.option("--limit", type=click.IntRange(min=0), default=5, show_default=True, help="Prompts of each kind.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=256, show_default=True)
def main(bundle: Path, strategies: tuple[str, ...], decodes: int, seed: int, limit: int, max_new_tokens: int) -> None:
    """Compare decodes of BUNDLE on one thread."""
    rows, different = [], 0
    with Decoder.open(bundle, ["cpu"], threads=1) as decoder:
        prompts = [item.prompt for item in eval_set_from_jsonl(EVAL, limit=limit)] if limit else []
        for strategy in strategies if prompts else ():
            pairs = {
                branches: [
                    pair_of(
                        decoder,
                        prompt,
                        decoder.config(
                            strategy=strategy, lossless=True, branches=branches, max_new_tokens=max_new_tokens
                        ),
                    )
                    for prompt in prompts
                ]
                for branches in BRANCHES
            }
            different += sum(pair.differs for own in pairs.values() for pair in own)
            rows.append(row_of(strategy, pairs))
        show_table(
            Table(
                title=f"{len(prompts)} prompts: forwards of the rule alone over those of lossless, the same of seconds "
                "(equal answers)",
                columns=("strategy", "forwards alone", *(f"{branches} branches" for branches in BRANCHES)),
                rows=tuple(rows),
            )
        )
        alone = lossless = more = unequal = 0
        seen = Counter[str]()
        with progress_shown("random decodes", decodes) as progress:
            for number, config, pair in random_pairs(decoder, range(seed, seed + decodes)):
                alone, lossless = alone + pair.alone.steps, lossless + pair.lossless.steps
                seen[pair.lossless.plan.strategy] += 1
                more += pair.lossless.steps > pair.alone.steps
                if pair.differs:
                    unequal += 1
                    click.echo(f"seed {number} differs: {config}")
                progress(number - seed + 1)
        click.echo(
            f"{decodes} random configs from seed {seed}: {decodes - unequal} with equal answers, {more} with more "
            f"forwards; {alone} forwards by the rule alone, {lossless} lossless; "
            + ", ".join(f"{name} {count}" for name, count in sorted(seen.items()))
        )
    if different or unequal or more:
        sys.exit(1)


if __name__ == "__main__":
    main()
