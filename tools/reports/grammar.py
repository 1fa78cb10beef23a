"""Decode with random schemas, check the answers with an independent validator, and measure the cost of grammars.

Usage: python -m tools.measure grammar BUNDLE [--decodes N] [--seed N]

Every decode has its own schema, strategy and options. The exit code is 1 if an answer that ended by itself violates its
schema.
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

from lopa.bench.table import Table
from lopa.bench.turns import result_with_steps
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import GrammarRefusedError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.grammar_source import matcher_from_request, request_from_config
from lopa.runtime.grammar.state import initial_state
from lopa.runtime.grammar.vocabulary import Vocabulary, vocabulary_from_tokenizer
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.strategy import STRATEGIES as ALL_STRATEGIES
from lopa.tiny import EVAL
from tools.random_schemas import random_schema
from tools.report import show_report

STRATEGIES = tuple(sorted(name for name, each in ALL_STRATEGIES.items() if not (each.remask_threshold or each.canvas)))
"""Strategies that support grammars. Remasking is excluded, since a grammar cannot undo tokens."""


@dataclass
class GrammarStatistics:
    """Statistics of the decodes."""

    ends: Counter[str] = field(default_factory=Counter)
    strategies: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Rejected schemas by reason."""
    invalid: list[str] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    host: list[float] = field(default_factory=list)
    """Seconds of each step outside its forward."""
    start: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)
    """Seconds of a grammar before its first token, of reading a token, and of computing a mask."""

    def add(self, result: GenerationResult, steps: Sequence[Step]) -> None:
        """Count a decode."""
        self.ends[result.stop_reason] += 1
        self.strategies[result.params.strategy] += 1
        self.tokens, self.steps = self.tokens + result.tokens, self.steps + result.steps
        self.host += [sum(step.seconds.values()) - step.seconds["forward"] for step in steps]

    def check(self, schema: dict[str, Any], result: GenerationResult) -> None:
        """Validate an answer that ended by itself."""
        if result.stop_reason != "eos":
            return
        try:
            jsonschema.Draft202012Validator(schema).validate(json.loads(result.text))
        except (ValueError, jsonschema.ValidationError) as error:
            self.invalid.append(f"{json.dumps(schema)} got {result.text!r}: {str(error).splitlines()[0]}")

    def time(self, config: GenerationConfig, result: GenerationResult, vocabulary: Vocabulary) -> None:
        """Read an answer again and measure the grammar's operations."""
        began = time.perf_counter()
        request = request_from_config(config, result.params.positions)
        state = initial_state(matcher_from_request(request, vocabulary), request.positions)
        self.start.append(time.perf_counter() - began)
        for place, token in enumerate(result.token_ids):
            began = time.perf_counter()
            state.matcher.allowed.any()
            masked = time.perf_counter()
            after = state.after(token, result.params.positions - place - 1)
            self.mask.append(masked - began)
            self.after.append(time.perf_counter() - masked)
            assert after is not None
            state = after


def random_options(rng: random.Random, schema: dict[str, Any], number: int) -> dict[str, Any]:
    """Return random options of one decode: strategy, blocks, windows, thresholds, sampling."""
    strategy = ALL_STRATEGIES[rng.choice(STRATEGIES)]
    return {
        "strategy": strategy.name,
        "json_schema": schema,
        "branches": rng.choice([1, 2, 4]) if strategy.looks_ahead else None,
        "block_size": rng.choice([8, 16, 32]),
        "attention": rng.choice(["full", "block_causal"]) if strategy.pipelined else "full",
        "skip_threshold": rng.choice([0.2, 0.5, 0.9]),
        "temperature": rng.choice([0.0, 0.0, 0.5, 1.0]),
        "drop_after_eos": rng.random() < 0.8,
        "max_new_tokens": rng.choice([48, 96, 160]),
        "seed": number,
    }


def decode_statistics(decoder: Decoder, count: int, seed: int) -> GrammarStatistics:
    """Return the statistics of `count` decodes. Rejected schemas do not count."""
    rng, statistics = random.Random(seed), GrammarStatistics()
    prompts = [json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines()]
    vocabulary = vocabulary_from_tokenizer(decoder.tokenizer, decoder.bundle.manifest)
    while statistics.ends.total() < count:
        schema, prompt = random_schema(rng), rng.choice(prompts)
        options = random_options(rng, schema, statistics.ends.total())
        config = decoder.config(**options)
        try:
            result, steps = result_with_steps(decoder, prompt, config)
        except GrammarRefusedError as error:
            statistics.refused[
                "max_new_tokens" if "max_new_tokens" in error.received else error.received.rpartition(": ")[2]
            ] += 1
            continue
        statistics.add(result, steps)
        statistics.check(schema, result)
        statistics.time(config, result, vocabulary)
    return statistics


def tables_of_decodes(statistics: GrammarStatistics) -> list[Table]:
    """Return tables of the decodes' ends and of the costs of grammars."""
    counts = {
        **{f"ended: {reason}": count for reason, count in statistics.ends.items()},
        "ended by itself but invalid": len(statistics.invalid),
        **{f"strategy {name}": count for name, count in statistics.strategies.items()},
        **{f"schema rejected (not counted): {reason}": count for reason, count in statistics.refused.most_common()},
        "tokens": statistics.tokens,
        "steps": statistics.steps,
    }
    costs = {
        "compile a schema": statistics.start,
        "compute a mask": statistics.mask,
        "read a token": statistics.after,
        "step without its forward": statistics.host,
    }
    return [
        Table("Decodes", ("event", "count"), tuple((name, str(count)) for name, count in counts.items())),
        Table("Microseconds", ("cost", "n", "median", "p99", "maximum"), tuple(_row(*each) for each in costs.items())),
    ]


def _row(name: str, seconds: Sequence[float]) -> tuple[str, ...]:
    return (name, str(len(seconds)), *(f"{1e6 * value:.0f}" for value in np.percentile(seconds, (50, 99, 100))))


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--decodes", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of decodes.")
@click.option("--seed", default=1, show_default=True, help="Seed of schemas and options.")
def main(bundle: Path, decodes: int, seed: int) -> None:
    """Decode BUNDLE with random schemas on one thread."""
    with Decoder.open(bundle, threads=1) as decoder:
        statistics = decode_statistics(decoder, decodes, seed)
    show_report(tables_of_decodes(statistics))
    for text in statistics.invalid:
        click.echo(text, err=True)
    if statistics.invalid:
        sys.exit(1)
