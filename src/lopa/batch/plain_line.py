"""This project's own format of requests and results, for lines of files and rows of tables."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from lopa.runtime.chat.chat import Chat
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import check_names
from lopa.runtime.options import CONSTRAINTS, GRAMMARS
from lopa.runtime.requests.request import Prompt
from lopa.runtime.requests.result import GenerationResult
from lopa.serve.openai.prompts import check_prompt_ids, check_prompt_text, messages_from_field

PROMPT_FIELDS = ("prompt", "prompt_ids", "messages")
_REMEDY = "correct the line"


class ParsedLine(NamedTuple):
    """A prompt, and decoding options by the names of GenerationConfig."""

    prompt: Prompt
    options: Mapping[str, Any]


def parse_plain_line(value: Mapping[str, Any]) -> ParsedLine:
    """Parse an object with "prompt", "prompt_ids" or "messages", and optionally options and an "id".

    Raises BadInputError for any other object.
    """
    options = {name: each for name, each in value.items() if name not in (*PROMPT_FIELDS, "id")}
    check_names(options)
    options = {name: each for name, each in options.items() if each is not None}
    return ParsedLine(prompt_from_fields(value), options)


def options_of_prompt(run: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a prompt in a run: its `own`, and those of the run that do not contradict them.

    An answer satisfies one grammar or is one of the choices. Those of a prompt replace the run's, and its options that
    they exclude.
    """
    replaced: set[str] = set()
    if not {*GRAMMARS, "choices"}.isdisjoint(own):
        replaced = {*GRAMMARS, "choices", "anytime", "reference"}
    if "choices" in own:
        replaced |= {*CONSTRAINTS}
    return {**{name: value for name, value in run.items() if name not in replaced}, **own}


def prompt_from_fields(value: Mapping[str, Any]) -> Prompt:
    """Return the one prompt of an object. Raises BadInputError for none and several of PROMPT_FIELDS."""
    given = [name for name in PROMPT_FIELDS if name in value]
    if len(given) != 1:
        raise BadInputError(
            f"{' and '.join(given) or 'no prompt'} in {str(dict(value))[:80]}",
            expected='exactly one of "prompt" (text), "prompt_ids" (integers) and "messages" (a chat)',
            remedy=_REMEDY,
        )
    if "messages" in value:
        return Chat(messages_from_field(value["messages"]))
    if "prompt_ids" in value:
        return check_prompt_ids(value["prompt_ids"])
    return check_prompt_text(value["prompt"])


def id_of_line(value: Mapping[str, Any]) -> str | int | float | None:
    """Return the "id" of a line's object, or None without one. Raises BadInputError unless it is a text or a number."""
    found = value.get("id")
    if found is None or (isinstance(found, str | int | float) and not isinstance(found, bool)):
        return found
    raise BadInputError(f"id {str(found)[:80]}", expected="a string or a number", remedy=_REMEDY)


def fields_of_result(result: GenerationResult, *, prompt_ids: bool) -> dict[str, Any]:
    """Return the fields of a result by name. Fields that were not requested are omitted."""
    found = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    # These fields describe the run, not the answer. Without them, a second run writes the same file.
    del found["cached_tokens"], found["params"]
    if not prompt_ids:
        del found["prompt_ids"]
    return {name: _json_value(value) for name, value in found.items() if value is not None}


def _json_value(value: Any) -> Any:
    """Return None for NaN, the log-probability of a position that stayed masked, since JSON has no NaN.

    Records become objects.
    """
    if dataclasses.is_dataclass(value):
        return {field.name: _json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_json_value(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
