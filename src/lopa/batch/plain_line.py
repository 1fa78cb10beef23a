"""Parsing of this project's own lines in a file of prompts: a prompt or a chat, and decoding options.

lopa.cli.batch.openai_line parses the lines of OpenAI's batch files. This module does not use a bundle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import NULLABLE, OPTIONS, did_you_mean
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.text.prompt_ids import Prompt
from lopa.serve.openai.prompts import Messages, check_messages, check_prompt_ids, check_prompt_text, normalize_messages

PROMPT_FIELDS = ("prompt", "prompt_ids", "messages")
_REMEDY = "correct the line"


class AnswerFormat(Protocol):
    """The format of the answer to a line, as JSON values."""

    def from_result(self, result: GenerationResult) -> dict[str, Any]:
        """Return the line for a result."""

    def from_error(self, error: BadInputError) -> dict[str, Any]:
        """Return the line for an error."""


@dataclass(frozen=True)
class ParsedLine:
    """Either a prompt or a chat, and decoding options by the names of GenerationConfig."""

    prompt: Prompt | None = None
    messages: Messages | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    """Name in the line of each option that GenerationConfig names differently, by GenerationConfig's name."""
    raw: bool = False
    """True to complete the prompt as it is, even with --chat."""


def parse_plain_line(value: Mapping[str, Any]) -> ParsedLine:
    """Parse an object with "prompt", "prompt_ids" or "messages", and optionally options and an "id".

    Raises BadInputError for any other object.
    """
    given = [name for name in PROMPT_FIELDS if name in value]
    if len(given) != 1:
        raise BadInputError(
            f"{' and '.join(given) or 'no prompt'} in {_shown(value)}",
            expected='exactly one of "prompt" (text), "prompt_ids" (integers) and "messages" (a chat)',
            remedy=_REMEDY,
        )
    options = {name: each for name, each in value.items() if name not in (*PROMPT_FIELDS, "id")}
    check_options(options)
    options = {name: each for name, each in options.items() if each is not None or name == NULLABLE}
    if "messages" in value:
        return ParsedLine(messages=normalize_messages(check_messages(value["messages"])), options=options)
    if "prompt_ids" in value:
        return ParsedLine(prompt=check_prompt_ids(value["prompt_ids"]), options=options)
    return ParsedLine(prompt=check_prompt_text(value["prompt"]), options=options)


def id_of_line(value: Mapping[str, Any]) -> str | int | float | None:
    """Return the "id" of a line's object, or None without one. Raises BadInputError unless it is a text or a number."""
    found = value.get("id")
    if found is None or (isinstance(found, str | int | float) and not isinstance(found, bool)):
        return found
    raise BadInputError(f"id {str(found)[:80]}", expected="a string or a number", remedy=_REMEDY)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise BadInputError for names that are not decoding options. GenerationConfig checks their values."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise BadInputError(
            "unknown " + ", ".join(repr(name[:80]) for name in unknown[:8]),
            expected=", ".join((*PROMPT_FIELDS, "id")) + " and the options " + ", ".join(OPTIONS),
            remedy=did_you_mean(unknown[0]),
        )


def _shown(value: Mapping[str, Any]) -> str:
    return str(dict(value))[:80]
