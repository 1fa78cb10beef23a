"""Decodes by random schemas, judged by an independent validator; and what a grammar costs.

Usage: python -m tools.measure grammar BUNDLE [--decodes N] [--seed N]

Every decode has a schema, a strategy and options of its own. The exit code is 1 where an answer that ended by itself is
not what its schema allows.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import jsonschema
import numpy as np

from lopa.bench.decoded_steps import result_with_steps
from lopa.bench.table import Table
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.errors import GrammarRefusedError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.source import reading_from_request, request_from_config
from lopa.runtime.grammar.state import state_of_nothing
from lopa.runtime.grammar.vocabulary import Vocabulary, vocabulary_from_tokenizer
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.strategy import STRATEGIES as ALL_STRATEGIES
from lopa.tiny import EVAL
from tools.random_schemas import random_schema
from tools.report import show_report

STRATEGIES = tuple(sorted(name for name, each in ALL_STRATEGIES.items() if not each.remask_threshold))
"""Those that a grammar goes with: what it has read is not doubted any more."""


@dataclass
class Seen:
    """What came of the decodes."""

    ends: Counter[str] = field(default_factory=Counter)
    strategies: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Schemas that were not decoded, by what was said."""
    invalid: list[str] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    host: list[float] = field(default_factory=list)
    """Seconds of each step that were not its forward's."""
    start: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)
    """Seconds of a grammar before its first token, of a token that is read, of a mask."""

    def add(self, result: GenerationResult, steps: Sequence[Step]) -> None:
        """Count a decode."""
        self.ends[result.stop_reason] += 1
        self.strategies[result.plan.strategy] += 1
        self.tokens, self.steps = self.tokens + result.tokens, self.steps + result.steps
        self.host += [sum(step.seconds.values()) - step.seconds["forward"] for step in steps]

    def check(self, schema: dict[str, Any], result: GenerationResult) -> None:
        """Let the validator judge an answer that ended by itself."""
        if result.stop_reason != "eos":
            return
        try:
            jsonschema.Draft202012Validator(schema).validate(json.loads(result.text))
        except (ValueError, jsonschema.ValidationError) as error:
            self.invalid.append(f"{json.dumps(schema)} got {result.text!r}: {str(error).splitlines()[0]}")

    def time(self, config: GenerationConfig, result: GenerationResult, vocabulary: Vocabulary) -> None:
        """Read an answer once more, with a clock."""
        began = time.perf_counter()
        request = request_from_config(config, result.plan.positions)
        state = state_of_nothing(reading_from_request(request, vocabulary), request.positions)
        self.start.append(time.perf_counter() - began)
        for place, token in enumerate(result.token_ids):
            began = time.perf_counter()
            state.reading.allowed.any()
            masked = time.perf_counter()
            after = state.after(token, result.plan.positions - place - 1)
            self.mask.append(masked - began)
            self.after.append(time.perf_counter() - masked)
            assert after is not None
            state = after


def random_options(rng: random.Random, schema: dict[str, Any], number: int) -> dict[str, Any]:
    """Return options of one decode: any of the strategies, blocks, windows, thresholds, draws."""
    strategy = ALL_STRATEGIES[rng.choice(STRATEGIES)]
    return {
        "strategy": strategy.name,
        "json_schema": schema,
        "branches": rng.choice([1, 2, 4]) if strategy.looks_ahead else None,
        "block_size": rng.choice([8, 16, 32]),
        "window": rng.choice(["full", "block_causal"]) if strategy.pipelined else "full",
        "skip_threshold": rng.choice([0.2, 0.5, 0.9]),
        "temperature": rng.choice([0.0, 0.0, 0.5, 1.0]),
        "drop_after_eos": rng.random() < 0.8,
        "max_new_tokens": rng.choice([48, 96, 160]),
        "seed": number,
    }


def seen_of_decodes(decoder: Decoder, count: int, seed: int) -> Seen:
    """What came of `count` decodes; schemas that are refused come on top of them."""
    rng, seen = random.Random(seed), Seen()
    prompts = [json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines()]
    vocabulary = vocabulary_from_tokenizer(decoder.tokenizer, decoder.bundle.manifest)
    while seen.ends.total() < count:
        schema, prompt = random_schema(rng), rng.choice(prompts)
        options = random_options(rng, schema, seen.ends.total())
        config = decoder.config(**options)
        try:
            result, steps = result_with_steps(decoder, prompt, config)
        except GrammarRefusedError as error:
            seen.refused["no room" if "max_new_tokens" in error.received else error.received.rpartition(": ")[2]] += 1
            continue
        seen.add(result, steps)
        seen.check(schema, result)
        seen.time(config, result, vocabulary)
    return seen


def tables_of_decodes(seen: Seen) -> list[Table]:
    """Return how the decodes ended, and what grammars cost."""
    counts = {
        **{f"ended: {reason}": count for reason, count in seen.ends.items()},
        "ended by itself, and invalid": len(seen.invalid),
        **{f"strategy {name}": count for name, count in seen.strategies.items()},
        **{f"schema refused on top: {reason}": count for reason, count in seen.refused.most_common()},
        "tokens": seen.tokens,
        "steps": seen.steps,
    }
    costs = {
        "a schema before its first token": seen.start,
        "a mask": seen.mask,
        "a token that is read, and its way to the end": seen.after,
        "a step without its forward": seen.host,
    }
    return [
        Table("Decodes", ("what", "count"), tuple((name, str(count)) for name, count in counts.items())),
        Table("Microseconds", ("cost", "n", "median", "99 %", "maximum"), tuple(_row(*each) for each in costs.items())),
    ]


def _row(name: str, seconds: Sequence[float]) -> tuple[str, ...]:
    return (name, str(len(seconds)), *(f"{1e6 * value:.0f}" for value in np.percentile(seconds, (50, 99, 100))))


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--decodes", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(bundle: Path, decodes: int, seed: int) -> None:
    """Decode BUNDLE by random schemas, on one thread."""
    with Decoder.open(bundle, threads=1) as decoder:
        seen = seen_of_decodes(decoder, decodes, seed)
    show_report(tables_of_decodes(seen))
    for text in seen.invalid:
        click.echo(text, err=True)
    if seen.invalid:
        sys.exit(1)
