"""Decode forced calls of random tools, and validate each call with an independent validator.

Usage: python -m tools.measure tools BUNDLE [--calls N] [--seed N]

Each request has up to four tools with random schemas, some of them strict, and its own sampling. The formats, marks as
text or as tokens, and prompts with and without open reasoning take turns. BUNDLE is the embedded model's. The exit code
is 1 if an answer that ended by itself lacks a valid call.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import jsonschema
from tests.chat_bundles import HERMES, with_added_tokens, with_chat_template

from lopa.bench.table import Table
from lopa.runtime.chat.call_format import FORMATS
from lopa.runtime.chat.chat import requested_tools
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.serve.openai.body_config import options_of_body
from lopa.serve.openai.body_options import CHATS
from lopa.serve.openai.body_requests import requests_from_body
from lopa.serve.openai.request import AnswerRequest, request_from_body
from lopa.serve.protocols.choice import Choice
from lopa.serve.serve_limits import ServeLimits
from tools.random_schemas import random_schema
from tools.report import show_report
from tools.reports.grammar import random_options
from tools.serving.cases import choice_alone

_LENGTHS = (160, 240)
"""Values of max_tokens. Random schemas take up to 150 tokens."""
_BUDGET = 8
_MAX_TOOLS = 4
_CHAT = [{"role": "user", "content": "There are 9 baskets, and each holds 6 candies. How many candies?"}]


@dataclass
class CallStatistics:
    """Statistics of the decodes."""

    ends: Counter[str] = field(default_factory=Counter)
    valid: Counter[str] = field(default_factory=Counter)
    """Answers that ended by themselves with valid calls only, by format, marks and reasoning."""
    calls: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Refused requests by reason."""
    invalid: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def add(self, name: str, requested: AnswerRequest, choice: Choice) -> None:
        """Count and validate an answer."""
        result = choice.result
        self.ends[result.stop_reason] += 1
        self.tokens += result.tokens
        self.seconds += result.seconds
        if result.stop_reason != "eos":
            return
        fault = _fault(requested, choice)
        if fault is None:
            self.valid[name] += 1
            self.calls += len(choice.calls)
        else:
            self.invalid.append(f"{name}: {fault} in {result.text!r}")


def _fault(requested: AnswerRequest, choice: Choice) -> str | None:
    """Return what is wrong with a forced answer, or None."""
    assert requested.chat is not None
    tools = requested_tools(requested.chat)
    assert tools is not None
    schemas = {each.name: each.parameters for each in tools.tools}
    if not choice.calls or choice.text.strip():
        return "no call, or text beside calls"
    for call in choice.calls:
        try:
            jsonschema.Draft202012Validator(schemas[call.name]).validate(json.loads(call.arguments))
        except (ValueError, KeyError, jsonschema.ValidationError) as error:
            return f"{type(error).__name__} {str(error).splitlines()[0]} for {json.dumps(schemas.get(call.name))}"
    return None


def random_body(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a chat that has to call one of up to four random tools."""
    tools = [_tool(rng, place) for place in range(rng.randint(1, _MAX_TOOLS))]
    options = random_options(rng, {}, number)
    own = {name: value for name, value in options.items() if name not in ("json_schema", "max_new_tokens")}
    named = {"type": "function", "function": {"name": tools[-1]["function"]["name"]}}
    return {
        "model": "",
        "messages": _CHAT,
        "tools": tools,
        "tool_choice": rng.choice(["required", "required", named]),
        "parallel_tool_calls": rng.random() < 0.5,
        "max_tokens": rng.choice(_LENGTHS),
        "lopa": {name: value for name, value in own.items() if value is not None},
    }


def _tool(rng: random.Random, place: int) -> dict[str, Any]:
    function = {"name": f"f{place}", "parameters": random_schema(rng, 2)}
    return {"type": "function", "function": function | ({"strict": True} if rng.random() < 0.5 else {})}


@contextmanager
def decoders(bundle: Path) -> Iterator[dict[str, Decoder]]:
    """Open copies of `bundle` with a template for tools, with marks as text and as tokens."""
    with TemporaryDirectory() as folder, ExitStack() as opened:
        copies = {
            "text": with_chat_template(bundle, Path(folder) / "text", HERMES),
            "tokens": with_added_tokens(bundle, Path(folder) / "tokens", HERMES),
        }
        yield {name: opened.enter_context(Decoder.open(path, threads=1)) for name, path in copies.items()}


def call_statistics(opened: dict[str, Decoder], count: int, seed: int) -> CallStatistics:
    """Return the statistics of `count` decodes. Refused requests do not count."""
    rng, statistics = random.Random(seed), CallStatistics()
    forms = cycle(product(FORMATS.values(), opened, (False, True)))
    while statistics.ends.total() < count:
        call_format, marks, is_open = next(forms)
        decoder = opened[marks]
        body = random_body(rng, statistics.ends.total())
        if is_open:
            body |= {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": _BUDGET}
        name = f"{call_format.name}, marks as {marks}{', reasoning' if is_open else ''}"
        try:
            requested = request_from_body(body, CHATS, ServeLimits())
            resolved = options_of_body(decoder.resolve, requested.options)
            (request,) = requests_from_body(requested, resolved, call_format)
            choice = choice_alone(decoder, request.prompt, request.config)
        except BadInputError as error:
            reason = "max_tokens" if "max_new_tokens" in error.received else error.received.rpartition(": ")[2][:60]
            statistics.refused[reason] += 1
            continue
        statistics.add(name, requested, choice)
    return statistics


def tables_of_calls(statistics: CallStatistics) -> list[Table]:
    """Return the tables of the report."""
    counts = {
        **{f"ended: {reason}": str(count) for reason, count in statistics.ends.items()},
        "ended by itself, but invalid": str(len(statistics.invalid)),
        "valid calls": str(statistics.calls),
        "tokens": str(statistics.tokens),
        "seconds": f"{statistics.seconds:.0f}",
        **{f"refused (not counted): {reason}": str(count) for reason, count in statistics.refused.most_common()},
    }
    return [
        Table("Forced calls", ("event", "count"), tuple(counts.items())),
        Table(
            "Valid answers", ("format", "count"), tuple((name, str(n)) for name, n in sorted(statistics.valid.items()))
        ),
    ]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--calls", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of decodes.")
@click.option("--seed", default=1, show_default=True, help="Seed of tools and options.")
def main(bundle: Path, calls: int, seed: int) -> None:
    """Decode BUNDLE with random tools on one thread."""
    with decoders(bundle) as opened:
        statistics = call_statistics(opened, calls, seed)
    show_report(tables_of_calls(statistics))
    for text in statistics.invalid:
        click.echo(text, err=True)
    if statistics.invalid:
        sys.exit(1)
