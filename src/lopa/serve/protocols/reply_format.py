"""The form of replies in one protocol: what all of them know, and what each of them writes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from lopa import __version__
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.record import json_from_record
from lopa.serve.chat.answer_parser import Part
from lopa.serve.http.api_error import ApiError
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.protocols.choice import Choice, DecodeIds


@dataclass(frozen=True)
class ReplyContext:
    """Facts about one reply."""

    requested: AnswerRequest
    number: str
    """Hexadecimal number with which all ids of the reply end."""
    created: int
    """Seconds since 1970."""
    model: str
    fingerprint: str
    """Version of lopa and digest of the bundle."""
    decode_ids: DecodeIds

    def call_id(self, choice: int, call: int) -> str:
        """Return the unique end of the id of a call."""
        return f"{self.number[:16]}{choice:02x}{call:02x}"


def fingerprint_from_manifest(manifest: Manifest) -> str:
    """Return the system fingerprint: version of lopa and digest of the bundle's manifest."""
    return f"lopa-{__version__}-{hashlib.sha256(json_from_record(manifest)).hexdigest()[:12]}"


class ReplyFormat(Protocol):
    """Writer of one whole reply."""

    @property
    def id(self) -> str:
        """Id of the reply."""

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the body of a reply that is not streamed."""


class StreamFormat(ReplyFormat, Protocol):
    """Writer of one reply, whole or streamed. A streamed reply calls its methods in order."""

    def begin(self, count: int, prompt_tokens: int) -> bytes:
        """Return the events before the first part of `count` choices. The prompt has `prompt_tokens` tokens."""

    def part(self, index: int, part: Part) -> bytes:
        """Return the events of a new part of choice `index`."""

    def draft(self, index: int, fields: Mapping[str, Any]) -> bytes:
        """Return the event of a draft of choice `index`; `fields` are the values of "lopa"."""

    def choice_ended(self, index: int, choice: Choice) -> bytes:
        """Return the events at the end of choice `index`."""

    def end(self, choices: Sequence[Choice]) -> bytes:
        """Return the events behind the last choice."""

    def error(self, error: ApiError) -> bytes:
        """Return the event of an error that ends the stream."""


def token_counts(choices: Sequence[Choice], copies: int) -> tuple[int, int, int, int]:
    """Return the tokens of prompts, of prompts found in the cache, of answers and of reasoning.

    Every `copies` consecutive choices share a prompt, which counts once.
    """
    prompts = choices[::copies]
    return (
        sum(len(choice.result.prompt_ids) for choice in prompts),
        sum(choice.result.cached_tokens for choice in prompts),
        sum(choice.result.tokens for choice in choices),
        sum(choice.reasoning_tokens for choice in choices),
    )


DONE = b"data: [DONE]\n\n"


def encode_event(value: object) -> bytes:
    """Return one event with `value` as JSON."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def encode_named_event(value: Mapping[str, Any]) -> bytes:
    """Return one event with `value` as JSON, named after its `type`."""
    return f"event: {value['type']}\n".encode() + encode_event(value)
