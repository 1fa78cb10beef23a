"""What a line of a file of prompts asks for, in its own words: a prompt or a chat, options, and who is answered how.

Lines of OpenAI's batches are read in openai_line. Knows no bundle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import OPTIONS
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.text.prompt_ids import Prompt
from lopa.serve.openai.prompts import Messages, checked_ids, checked_messages, checked_text, plain_messages

_PROMPTS = ("prompt", "prompt_ids", "messages")
_DRAWN = "seed"
"""Option whose null means something: a seed that is drawn. Of others it is the same as no option."""
_REMEDY = "correct the line"


class Answers(Protocol):
    """The shape in which a line is answered; values are those of JSON."""

    def of_result(self, result: GenerationResult) -> dict[str, Any]:
        """The line of a result."""

    def of_error(self, error: BadInputError) -> dict[str, Any]:
        """The line of what was wrong."""


@dataclass(frozen=True)
class Asked:
    """A prompt or a chat, one of the two, and decoding options by the names of GenerationConfig."""

    prompt: Prompt | None = None
    messages: Messages | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    """Names of options in this line, where they differ from ours."""
    raw: bool = False
    """Whether the prompt is to be completed as it is, whatever the command line says of chats."""


def asked_of_line(value: Mapping[str, Any]) -> Asked:
    """What an object of ours asks for: {"prompt" or "prompt_ids" or "messages", "id", and options}.

    Raises BadInputError for any other.
    """
    given = [name for name in _PROMPTS if name in value]
    if len(given) != 1:
        raise BadInputError(
            f"{' and '.join(given) or 'no prompt'} in {_shown(value)}",
            expected='exactly one of "prompt" (text), "prompt_ids" (whole numbers) and "messages" (a chat)',
            remedy=_REMEDY,
        )
    options = {name: each for name, each in value.items() if name not in (*_PROMPTS, "id")}
    check_options(options)
    options = {name: each for name, each in options.items() if each is not None or name == _DRAWN}
    if "messages" in value:
        return Asked(messages=plain_messages(checked_messages(value["messages"])), options=options)
    if "prompt_ids" in value:
        return Asked(prompt=checked_ids(value["prompt_ids"]), options=options)
    return Asked(prompt=checked_text(value["prompt"]), options=options)


def id_of_line(value: Mapping[str, Any]) -> str | int | float | None:
    """The "id" of an object of ours, if it has one. Raises BadInputError for what is neither text nor number."""
    found = value.get("id")
    if found is None or (isinstance(found, str | int | float) and not isinstance(found, bool)):
        return found
    raise BadInputError(f"id {str(found)[:80]}", expected="a string or a number", remedy=_REMEDY)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise BadInputError for names that are no decoding options; their values are checked when a config is made."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise BadInputError(
            "unknown " + ", ".join(repr(name[:80]) for name in unknown[:8]),
            expected=", ".join((*_PROMPTS, "id")) + " and the options " + ", ".join(OPTIONS),
            remedy="correct or remove it",
        )


def _shown(value: Mapping[str, Any]) -> str:
    return str(dict(value))[:80]
