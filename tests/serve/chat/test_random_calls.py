"""Forced calls of random tools are valid for an independent validator, in all formats, with and without reasoning."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.chat_bundles import HERMES, with_added_tokens, with_chat_template
from tools.random_schemas import random_schema
from tools.reports.grammar import random_options
from tools.serving.cases import choice_alone

from lopa.runtime.chat.call_format import FORMATS, CallFormat
from lopa.runtime.chat.chat import requested_tools
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.serve.openai.body_options import CHATS
from lopa.serve.openai.body_requests import options_of_body, requests_from_body
from lopa.serve.openai.request import request_from_body
from lopa.serve.protocols.choice import Choice
from lopa.serve.serve_limits import ServeLimits

pytest.importorskip("llguidance")

LENGTHS = (160, 240)
"""Values of max_tokens. Random schemas take up to 150 tokens."""
MAX_TOOLS = 4
CHAT = [{"role": "user", "content": "There are 9 baskets, and each holds 6 candies. How many candies?"}]
REASONING = {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 8}


@pytest.fixture(scope="module")
def decoders(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Decoder]]:
    """Open copies with a template for tools, with marks as text and as tokens."""
    folder = tmp_path_factory.mktemp("calls")
    copies = {
        "text": with_chat_template(tiny_bundle, folder / "text", HERMES),
        "tokens": with_added_tokens(tiny_bundle, folder / "tokens", HERMES),
    }
    with ExitStack() as opened:
        yield {name: opened.enter_context(Decoder.open(path, threads=1)) for name, path in copies.items()}


def random_body(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a chat that has to call one of up to four random tools."""
    tools = [random_tool(rng, place) for place in range(rng.randint(1, MAX_TOOLS))]
    options = random_options(rng, {}, number)
    own = {name: value for name, value in options.items() if name not in ("json_schema", "max_new_tokens")}
    named = {"type": "function", "function": {"name": tools[-1]["function"]["name"]}}
    return {
        "model": "",
        "messages": CHAT,
        "tools": tools,
        "tool_choice": rng.choice(["required", "required", named]),
        "parallel_tool_calls": rng.random() < 0.5,
        "max_tokens": rng.choice(LENGTHS),
        "lopa": {name: value for name, value in own.items() if value is not None},
    }


def random_tool(rng: random.Random, place: int) -> dict[str, Any]:
    function = {"name": f"f{place}", "parameters": random_schema(rng, 2)}
    return {"type": "function", "function": function | ({"strict": True} if rng.random() < 0.5 else {})}


def decoded(decoder: Decoder, body: dict[str, Any], call_format: CallFormat) -> tuple[dict[str, Any], Choice]:
    """Return the tools' schemas by name, and the answer. Raises BadInputError for a refused request."""
    requested = request_from_body(body, CHATS, ServeLimits())
    resolved = options_of_body(decoder, requested.options)
    (request,) = requests_from_body(requested, resolved, call_format)
    assert requested.chat is not None
    tools = requested_tools(requested.chat)
    assert tools is not None
    return {each.name: each.parameters for each in tools.tools}, choice_alone(decoder, request.prompt, request.config)


@pytest.mark.parametrize(
    ("seed", "count"), [(3, 6), *(pytest.param(seed, 20, marks=pytest.mark.slow) for seed in range(10, 22))]
)
def test_answers_that_end_by_themselves_have_valid_calls_only(
    seed: int, count: int, decoders: dict[str, Decoder]
) -> None:
    rng, ends = random.Random(seed), Counter[str]()
    calls = 0
    for call_format, marks, reasons in islice(cycle(product(FORMATS.values(), decoders, (False, True))), 2 * count):
        body = random_body(rng, ends.total()) | (REASONING if reasons else {})
        try:
            schemas, choice = decoded(decoders[marks], body, call_format)
        except BadInputError:
            continue  # a schema without a short answer
        ends[choice.result.stop_reason] += 1
        if choice.result.stop_reason == "eos":
            assert choice.calls, choice.result.text
            assert not choice.text.strip(), choice.result.text
            for call in choice.calls:
                jsonschema.Draft202012Validator(schemas[call.name]).validate(json.loads(call.arguments))
            calls += len(choice.calls)
        if ends.total() == count:
            break
    assert ends.total() == count
    assert calls > count // 2
