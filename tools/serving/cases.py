"""Requests with known answers: HTTP bodies, and the results of a decoder alone."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.options import MAX_POSITIONS
from lopa.runtime.requests.request import Prompt, Request
from lopa.runtime.text.tokenizer import OPENING
from lopa.serve.openai.body_options import CHATS, COMPLETIONS, LOPA_FIELD, MESSAGES, RESPONSES
from lopa.serve.openai.body_requests import options_of_body
from lopa.serve.protocols.choice import Choice, choice_from_handle
from lopa.serve.protocols.endpoints import ENDPOINTS
from lopa.serve.serve_limits import ServeLimits
from tools.random_configs import random_config, random_prompt
from tools.serving.replies import sorted_arguments

_TOP_LEVEL = {"max_new_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "seed": "seed"}
"""OpenAI's names of options. The others are in LOPA_FIELD."""
_KINDS, _SHARES = ("text", "ids", "texts", "chat", "tools"), (0.2, 0.1, 0.1, 0.2, 0.4)
_LONG_TOKENS = 400
_CALL_TOKENS = (64, 120)
"""Minimum and maximum of max_tokens in chats with tools. A forced call takes about 40 tokens."""
_BUDGET = 12
"""Maximum tokens of reasoning of such a chat, if it reasons."""
_TOOLS = (
    ("get_weather", {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}}),
    ("add", {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}}}),
    ("get_now", {"type": "object", "properties": {"zone": {"enum": ["a", "b"]}}, "required": ["zone"]}),
)
_ANY_TEXT = "start: /(?s:.*)/"
_UNREADABLE = "\ufffd"
_CHATS = (CHATS, MESSAGES, RESPONSES)
"""Endpoints of chats."""


@dataclass(frozen=True)
class ServingCase:
    """A body, with the choices that a decoder alone makes."""

    path: str
    body: dict[str, Any]
    alone: tuple[Choice, ...]

    @property
    def is_plain(self) -> bool:
        """True if the answer is the decoded text."""
        return all(each.text == each.result.text for each in self.alone)

    def encode(self, model: str, **more: Any) -> bytes:
        """Return the body with the model's name and further fields. Fields in LOPA_FIELD are merged."""
        ours = {**self.body[LOPA_FIELD], **more.pop(LOPA_FIELD, {})}
        return json.dumps({"model": model, **self.body, **more, LOPA_FIELD: ours}).encode()

    def difference(self, choices: Sequence[Mapping[str, Any]], *, may_be_cut: bool = False) -> str | None:
        """Return the first difference from the expected choices, or None.

        With `may_be_cut`, a choice that a deadline ended may have only the beginning of its text.
        """
        if [choice["index"] for choice in choices] != list(range(len(self.alone))):
            return f"choices {[choice['index'] for choice in choices]} instead of {len(self.alone)}"
        for choice, alone in zip(choices, self.alone, strict=True):
            if may_be_cut and choice[LOPA_FIELD]["stop_reason"] == "time_limit":
                if not _is_beginning(choice, alone):
                    return f"{choice} does not begin {alone.result.text!r}"
                continue
            received, expected = self._received(choice), self._expected(alone, choice[LOPA_FIELD]["steps"])
            if received != expected:
                return f"{received} instead of {expected}"
        return None

    def _received(self, choice: Mapping[str, Any]) -> tuple[Any, ...]:
        parts = (choice["text"], choice.get("reasoning", ""), choice.get("calls", []))
        ours = (choice[LOPA_FIELD][name] for name in ("stop_reason", "steps", "tokens", "seed"))
        return (*parts, choice["finish_reason"], choice.get("stop_sequence"), *ours)

    def _expected(self, alone: Choice, steps: int) -> tuple[Any, ...]:
        """Return what `_received` has to return. `steps` are the received steps."""
        result = alone.result
        calls = [
            [each.name, sorted_arguments(each.arguments) if self.path == MESSAGES else each.arguments]
            for each in alone.calls
        ]
        finish = "stop" if result.stop_reason in ("eos", "stop_string") else "length"
        finish = "tool_calls" if calls and finish == "stop" else finish
        stopped_at = result.stop_string if self.path == MESSAGES and not calls else None
        # Fast-dLLM v2's cache needs a first round for the prompt's rows, unless they are cached.
        skips_first_round = steps == result.steps - 1 and self.body[LOPA_FIELD].get("cache") == "sub_block"
        steps = steps if skips_first_round else result.steps
        parts = (alone.text, alone.reasoning, calls)
        return (*parts, finish, stopped_at, result.stop_reason, steps, result.tokens, result.seed)

    def begins_with(self, index: int, text: str) -> bool:
        """Return True if choice `index` begins with `text`. A truncated character at the end is ignored."""
        return self.alone[index].text.startswith(text.rstrip(_UNREADABLE))


@dataclass(frozen=True)
class ServingCases:
    """Requests of a soak test."""

    distinct: tuple[ServingCase, ...]
    long: tuple[ServingCase, ...]
    """Requests with hundreds of steps, for clients that leave early."""


def cases_of_bundle(bundle: Path, distinct: int, seed: int) -> ServingCases:
    """Return `distinct` random requests of `bundle`, which has a chat template, with their results."""
    rng = np.random.default_rng(seed)
    with Decoder.open(bundle, threads=1) as decoder:
        return ServingCases(tuple(_random_case(rng, decoder) for _ in range(distinct)), _long_cases(rng, decoder))


def _random_case(rng: np.random.Generator, decoder: Decoder) -> ServingCase:
    """Return a case with one prompt, two prompts or a chat, random options, and one to three answers per prompt."""
    config, copies = random_config(rng, decoder), int(rng.choice([1, 1, 1, 2, 3]))
    kind = str(rng.choice(_KINDS, p=_SHARES))
    if kind == "tools":
        return _chat_case(rng, decoder)
    ids = random_prompt(rng, decoder)
    prompts: list[Prompt] = [ids]
    field: dict[str, Any] = {"prompt": list(ids)}
    if kind == "chat":
        messages = [{"role": "user", "content": decoder.tokenizer.decode(list(ids))}]
        return _case(decoder, CHATS, {"messages": messages, **_fields_of_config(config), "n": copies})
    if kind == "text":
        prompts = [decoder.tokenizer.decode(list(ids))]
        field = {"prompt": prompts[0]}
    elif kind == "texts":
        other = random_prompt(rng, decoder)
        prompts, copies = [ids, other], min(copies, 2)
        field = {"prompt": [list(ids), list(other)]}
    body = {**field, **_fields_of_config(config), "n": copies}
    return ServingCase(COMPLETIONS, body, _decode_alone(decoder, prompts, config, copies))


def _chat_case(rng: np.random.Generator, decoder: Decoder) -> ServingCase:
    """Return a chat of any protocol with tools, reasoning or both."""
    config = random_config(rng, decoder)
    while not _allows_grammars(decoder, config):
        config = random_config(rng, decoder)
    config = replace(config, max_new_tokens=int(rng.integers(*_CALL_TOKENS)))
    path = str(rng.choice([CHATS, MESSAGES, RESPONSES]))
    choice = str(rng.choice(["auto", "required", "named", "none", "without tools"]))
    text = decoder.tokenizer.decode(list(random_prompt(rng, decoder)))
    fields = {**_fields_of_config(config), "messages": [{"role": "user", "content": text}]}
    if choice != "without tools":
        fields |= _tool_fields(path, choice)
    if rng.random() < 0.5:
        fields |= _reasoning_fields(path)
    if path == CHATS:
        fields["n"] = int(rng.choice([1, 1, 2]))
    return _case(decoder, path, _body_of_protocol(path, fields))


def _allows_grammars(decoder: Decoder, config: GenerationConfig) -> bool:
    try:
        decoder.params(replace(config, grammar=_ANY_TEXT))
    except BadInputError:
        return False
    return True


def _tool_fields(path: str, choice: str) -> dict[str, Any]:
    """Return tools and their choice in the form of the endpoint `path`. "named" chooses the last tool."""
    name = _TOOLS[-1][0]
    if path == MESSAGES:
        tools = [{"name": each, "input_schema": schema} for each, schema in _TOOLS]
        form = {"named": {"type": "tool", "name": name}, "required": {"type": "any"}}
        return {"tools": tools, "tool_choice": form.get(choice, {"type": choice})}
    if path == RESPONSES:
        tools = [{"type": "function", "name": each, "parameters": schema} for each, schema in _TOOLS]
        return {"tools": tools, "tool_choice": {"type": "function", "name": name} if choice == "named" else choice}
    tools = [{"type": "function", "function": {"name": each, "parameters": schema}} for each, schema in _TOOLS]
    named = {"type": "function", "function": {"name": name}}
    return {"tools": tools, "tool_choice": named if choice == "named" else choice}


def _reasoning_fields(path: str) -> dict[str, Any]:
    """Return the fields of a chat that reasons with a budget."""
    if path == MESSAGES:
        return {"thinking": {"type": "enabled", "budget_tokens": _BUDGET}}
    return {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": _BUDGET}


def _body_of_protocol(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat by the names of the endpoint `path`."""
    if path == RESPONSES:
        renamed = {"messages": "input", "max_tokens": "max_output_tokens"}
        return {renamed.get(name, name): value for name, value in fields.items()}
    if path == MESSAGES:
        made = {**fields, "stop_sequences": fields["stop"], LOPA_FIELD: dict(fields[LOPA_FIELD])}
        del made["stop"]
        if "seed" in made:
            made[LOPA_FIELD]["seed"] = made.pop("seed")
        return made
    return fields


def _case(decoder: Decoder, path: str, body: dict[str, Any]) -> ServingCase:
    """Return the case of a chat in the body of any protocol."""
    requested = ENDPOINTS[path].request({"model": "", **body}, ServeLimits(), {})
    config = options_of_body(decoder, requested.options).config
    alone = _decode_alone(decoder, requested.prompts, config, requested.copies)
    return ServingCase(path, body, alone)


def _long_cases(rng: np.random.Generator, decoder: Decoder) -> tuple[ServingCase, ...]:
    """Return a long case of each endpoint, a completion first."""
    prompt = random_prompt(rng, decoder)
    config = decoder.config(
        strategy="vanilla", max_new_tokens=_LONG_TOKENS, stop_at_eos=False, attention="block_causal"
    )
    fields = _fields_of_config(config)
    completion = ServingCase(
        COMPLETIONS, {"prompt": list(prompt), **fields}, _decode_alone(decoder, [prompt], config, 1)
    )
    chat = {**fields, "messages": [{"role": "user", "content": decoder.tokenizer.decode(list(prompt))}]}
    return (completion, *(_case(decoder, path, _body_of_protocol(path, chat)) for path in _CHATS))


def _fields_of_config(config: GenerationConfig) -> dict[str, Any]:
    values = {name: _json_value(value) for name, value in config.requested().items()}
    top = {ours: values.pop(name) for name, ours in _TOP_LEVEL.items() if name in values}
    return {**top, "stop": list(values.pop("stop", ())), LOPA_FIELD: values}


def _json_value(value: Any) -> Any:
    """Return the value for JSON, which has no infinity. An entropy bound this large has the same effect."""
    return MAX_POSITIONS if value == math.inf else value


def _decode_alone(
    decoder: Decoder, prompts: Sequence[Prompt], config: GenerationConfig, copies: int
) -> tuple[Choice, ...]:
    """Return all answers to the first prompt, then to the second. The answers to a prompt have consecutive seeds."""
    plan = decoder.params(config)
    configs = [replace(config, seed=plan.seed + copy * bool(plan.temperature)) for copy in range(copies)]
    return tuple(choice_alone(decoder, prompt, each) for prompt in prompts for each in configs)


def choice_alone(decoder: Decoder, prompt: Prompt, config: GenerationConfig) -> Choice:
    """Return the answer of a decoder without other requests."""
    (handle,) = decoder.handles([Request(prompt, config)])
    return choice_from_handle(handle, decoder.tokenizer.decode)


def _is_beginning(choice: Mapping[str, Any], alone: Choice) -> bool:
    """Return True if a choice that a deadline cut is the beginning of `alone`.

    A call or mark that was cut off is text. A truncated character at the end is ignored.
    """
    calls = choice.get("calls", [])
    names = [name for name, _ in calls] == [each.name for each in alone.calls[: len(calls)]]
    text = choice["text"].rstrip(_UNREADABLE)
    reasoning = choice.get("reasoning", "").rstrip(_UNREADABLE)
    first = alone.result.text.removeprefix(OPENING).strip()
    return names and first.startswith(reasoning.strip()) and text.strip() in alone.result.text
