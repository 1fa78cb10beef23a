"""Requests with known answers: HTTP bodies, and the results of a decoder alone."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.plan import MAX_POSITIONS
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.text.prompt_ids import Prompt
from lopa.serve.openai.body_options import CHATS, COMPLETIONS, LOPA_FIELD
from tools.random_configs import random_config, random_prompt

_TOP_LEVEL = {"max_new_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "seed": "seed"}
"""OpenAI's names of options. The others are in LOPA_FIELD."""
_KINDS, _SHARES = ("text", "ids", "texts", "chat"), (0.35, 0.15, 0.2, 0.3)
_LONG_TOKENS = 400
_UNREADABLE = "\ufffd"


@dataclass(frozen=True)
class ServingCase:
    """A body, with the result of a decoder alone for each choice of its answer."""

    path: str
    body: dict[str, Any]
    alone: tuple[GenerationResult, ...]

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
            text, ours = text_of_choice(choice), choice[LOPA_FIELD]
            if may_be_cut and ours["stop_reason"] == "time_limit":
                if not self.begins_with(choice["index"], text):
                    return f"{text!r} does not begin {alone.text!r}"
                continue
            received = (text, choice["finish_reason"], ours["stop_reason"], ours["steps"], ours["tokens"], ours["seed"])
            finish = "stop" if alone.stop_reason in ("eos", "stop_string") else "length"
            # Fast-dLLM v2's cache needs a first round for the prompt's rows, unless they are cached.
            skips_first_round = ours["steps"] == alone.steps - 1 and self.body[LOPA_FIELD].get("cache") == "sub_block"
            steps = ours["steps"] if skips_first_round else alone.steps
            expected = (alone.text, finish, alone.stop_reason, steps, alone.tokens, alone.seed)
            if received != expected:
                return f"{received} instead of {expected}"
        return None

    def begins_with(self, index: int, text: str) -> bool:
        """Return True if choice `index` begins with `text`. A truncated character at the end is ignored."""
        return self.alone[index].text.startswith(text.rstrip(_UNREADABLE))


@dataclass(frozen=True)
class ServingCases:
    """Requests of a soak test."""

    distinct: tuple[ServingCase, ...]
    long: ServingCase
    """Request with hundreds of steps, for clients that leave early."""


def cases_of_bundle(bundle: Path, distinct: int, seed: int) -> ServingCases:
    """Return `distinct` random requests of `bundle`, which has a chat template, with their results."""
    rng = np.random.default_rng(seed)
    with Decoder.open(bundle, threads=1) as decoder:
        return ServingCases(tuple(_random_case(rng, decoder) for _ in range(distinct)), _long_case(rng, decoder))


def text_of_choice(choice: Mapping[str, Any]) -> str:
    """Return the text of a choice of either endpoint."""
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def _random_case(rng: np.random.Generator, decoder: Decoder) -> ServingCase:
    """Return a case with one prompt, two prompts or a chat, random options, and one to three answers per prompt."""
    config, copies = random_config(rng, decoder), int(rng.choice([1, 1, 1, 2, 3]))
    kind = str(rng.choice(_KINDS, p=_SHARES))
    ids = random_prompt(rng, decoder)
    prompts: list[Prompt] = [ids]
    field: dict[str, Any] = {"prompt": list(ids)}
    if kind == "chat":
        messages = [{"role": "user", "content": decoder.tokenizer.decode(list(ids))}]
        prompts = [decoder.prompt_from_messages(messages, special_tokens=config.special_tokens)]
        field = {"messages": messages}
    elif kind == "text":
        prompts = [decoder.tokenizer.decode(list(ids))]
        field = {"prompt": prompts[0]}
    elif kind == "texts":
        other = random_prompt(rng, decoder)
        prompts, copies = [ids, other], min(copies, 2)
        field = {"prompt": [list(ids), list(other)]}
    body = {**field, **_fields_of_config(config), "n": copies}
    return ServingCase(CHATS if kind == "chat" else COMPLETIONS, body, _decode_alone(decoder, prompts, config, copies))


def _long_case(rng: np.random.Generator, decoder: Decoder) -> ServingCase:
    prompt = random_prompt(rng, decoder)
    config = decoder.config(strategy="vanilla", max_new_tokens=_LONG_TOKENS, stop_at_eos=False, window="block_causal")
    body = {"prompt": list(prompt), **_fields_of_config(config)}
    return ServingCase(COMPLETIONS, body, _decode_alone(decoder, [prompt], config, 1))


def _fields_of_config(config: GenerationConfig) -> dict[str, Any]:
    values = {name: _json_value(value) for name, value in config.requested().items()}
    top = {ours: values.pop(name) for name, ours in _TOP_LEVEL.items() if name in values}
    return {**top, "stop": list(values.pop("stop", ())), LOPA_FIELD: values}


def _json_value(value: Any) -> Any:
    """Return the value for JSON, which has no infinity. An entropy bound this large has the same effect."""
    return MAX_POSITIONS if value == math.inf else value


def _decode_alone(
    decoder: Decoder, prompts: Sequence[Prompt], config: GenerationConfig, copies: int
) -> tuple[GenerationResult, ...]:
    """Return all answers to the first prompt, then to the second. The answers to a prompt have consecutive seeds."""
    plan = decoder.plan(config)
    configs = [replace(config, seed=plan.seed + copy * bool(plan.temperature)) for copy in range(copies)]
    return tuple(decoder.generate(prompt, each) for prompt in prompts for each in configs)
