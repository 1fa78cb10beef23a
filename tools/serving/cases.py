"""Requests whose answers are known: what is asked over HTTP, and what a decoder alone gives. Knows no server."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import MOST_POSITIONS, GenerationConfig
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.text.prompt_ids import Prompt
from lopa.serve.openai.options import CHATS, COMPLETIONS, OURS
from tools.random_configs import random_config, random_prompt

_TOP_LEVEL = {"max_new_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "seed": "seed"}
"""OpenAI's names of options; the others are in OURS."""
_KINDS, _SHARES = ("text", "ids", "texts", "chat"), (0.35, 0.15, 0.2, 0.3)
_LONG_TOKENS = 400
_UNREADABLE = "\ufffd"


@dataclass(frozen=True)
class Case:
    """A body, and of each choice of its answer what a decoder gives that does nothing else."""

    path: str
    body: dict[str, Any]
    alone: tuple[GenerationResult, ...]

    def encoded(self, model: str, **more: Any) -> bytes:
        """The body for the model of that name, with fields more; what they have in OURS is added to its own."""
        ours = {**self.body[OURS], **more.pop(OURS, {})}
        return json.dumps({"model": model, **self.body, **more, OURS: ours}).encode()

    def difference(self, choices: Sequence[Mapping[str, Any]], *, may_be_cut: bool = False) -> str | None:
        """What is wrong with the choices of an answer, None for nothing.

        With `may_be_cut` one that a deadline ended may have the beginning of its text alone.
        """
        if [choice["index"] for choice in choices] != list(range(len(self.alone))):
            return f"choices {[choice['index'] for choice in choices]} instead of {len(self.alone)}"
        for choice, alone in zip(choices, self.alone, strict=True):
            text, ours = text_of_choice(choice), choice[OURS]
            if may_be_cut and ours["stop_reason"] == "time_limit":
                if not self.begins_with(choice["index"], text):
                    return f"{text!r} does not begin {alone.text!r}"
                continue
            got = (text, choice["finish_reason"], ours["stop_reason"], ours["steps"], ours["tokens"], ours["seed"])
            finish = "stop" if alone.stop_reason in ("eos", "stop_string") else "length"
            # Fast-dLLM v2's cache begins with a round that only keeps the prompt's rows: not where they are stored.
            spared = ours["steps"] == alone.steps - 1 and self.body[OURS].get("cache") == "sub_block"
            steps = ours["steps"] if spared else alone.steps
            wanted = (alone.text, finish, alone.stop_reason, steps, alone.tokens, alone.seed)
            if got != wanted:
                return f"{got} instead of {wanted}"
        return None

    def begins_with(self, index: int, text: str) -> bool:
        """Whether choice `index` alone begins so; a character that is cut in two may be at the end."""
        return self.alone[index].text.startswith(text.rstrip(_UNREADABLE))


@dataclass(frozen=True)
class Cases:
    """What is asked in a soak."""

    distinct: tuple[Case, ...]
    long: Case
    """One that runs for hundreds of steps: to be left before it ends."""


def cases_of_bundle(bundle: Path, distinct: int, seed: int) -> Cases:
    """So many random requests of `bundle`, which has a chat template, decoded one after another."""
    rng = np.random.default_rng(seed)
    with Decoder.open(bundle, threads=1) as decoder:
        return Cases(tuple(_random_case(rng, decoder) for _ in range(distinct)), _long_case(rng, decoder))


def text_of_choice(choice: Mapping[str, Any]) -> str:
    """Of either endpoint's."""
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def _random_case(rng: np.random.Generator, decoder: Decoder) -> Case:
    """One prompt, two, or a chat, with random options and one to three answers to each prompt."""
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
    return Case(CHATS if kind == "chat" else COMPLETIONS, body, _decoded_alone(decoder, prompts, config, copies))


def _long_case(rng: np.random.Generator, decoder: Decoder) -> Case:
    prompt = random_prompt(rng, decoder)
    config = decoder.config(strategy="vanilla", max_new_tokens=_LONG_TOKENS, stop_at_eos=False, window="block_causal")
    body = {"prompt": list(prompt), **_fields_of_config(config)}
    return Case(COMPLETIONS, body, _decoded_alone(decoder, [prompt], config, 1))


def _fields_of_config(config: GenerationConfig) -> dict[str, Any]:
    values = {name: _in_json(value) for name, value in dataclasses.asdict(config).items() if value is not None}
    top = {ours: values.pop(name) for name, ours in _TOP_LEVEL.items() if name in values}
    return {**top, "stop": list(values.pop("stop")), OURS: values}


def _in_json(value: Any) -> Any:
    """JSON has no infinity: so large a bound of entropy is none."""
    return MOST_POSITIONS if value == math.inf else value


def _decoded_alone(
    decoder: Decoder, prompts: Sequence[Prompt], config: GenerationConfig, copies: int
) -> tuple[GenerationResult, ...]:
    """All answers to the first prompt, then to the second; those to one prompt have seeds that count up."""
    return tuple(
        decoder.generate(prompt, config, seed=config.draw_seed + copy * bool(config.temperature))
        for prompt in prompts
        for copy in range(copies)
    )
