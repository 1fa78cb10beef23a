"""What a line of OpenAI's batch files asks for, in our words; it is answered as openai_answer says. Knows no bundle."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lopa.cli.batch.asked_line import Asked
from lopa.runtime.errors import BadInputError
from lopa.serve.openai.field_error import errors_of_field
from lopa.serve.openai.options import CHATS, PROMPT_FIELDS, options_of_body
from lopa.serve.openai.prompts import checked_ids, checked_messages, checked_text, plain_messages

_MARKS = frozenset(("custom_id", "url", "body"))
"""A line with one of these is of this shape."""
_LINE = frozenset(("custom_id", "method", "url", "body"))
_REMEDY = "correct the line"


def is_openai_line(value: Mapping[str, Any]) -> bool:
    """Whether an object of a file of prompts is meant to be of this shape."""
    return not _MARKS.isdisjoint(value)


def asked_of_openai_line(value: Mapping[str, Any]) -> Asked:
    """What a line of this shape asks for. Raises BadInputError for anything that would change the answer unheard."""
    endpoint, body = endpoint_and_body(value)
    prompt = body.get(PROMPT_FIELDS[endpoint])
    given = options_of_body(body, endpoint)
    with errors_of_field(PROMPT_FIELDS[endpoint]):
        asked = _asked(prompt, is_chat=endpoint == CHATS)
    return replace(asked, options=given.values, params=given.params)


def _asked(prompt: Any, *, is_chat: bool) -> Asked:
    if is_chat:
        return Asked(messages=plain_messages(checked_messages(prompt)))
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    checked = checked_ids(prompt) if isinstance(prompt, list) else checked_text(prompt)
    return Asked(prompt=checked, raw=True)


def endpoint_and_body(value: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """CHATS or COMPLETIONS, and what is asked of it. Raises BadInputError for a line of another form."""
    url, body = value.get("url"), value.get("body")
    for name, wrong, expected in (
        ("custom_id", not isinstance(value.get("custom_id"), str), "a text by which the answer is found"),
        ("method", value.get("method", "POST") != "POST", '"POST"'),
        ("url", not isinstance(url, str) or url not in PROMPT_FIELDS, " or ".join(PROMPT_FIELDS)),
        ("body", not isinstance(body, dict), "an object with the request"),
    ):
        if wrong:
            raise BadInputError(f"{name} {str(value.get(name))[:80]}", expected=expected, remedy=_REMEDY)
    if unknown := sorted(set(value) - _LINE):
        raise BadInputError(
            f"unknown {', '.join(unknown)[:80]!r}", expected=", ".join(sorted(_LINE)), remedy="correct or remove it"
        )
    assert isinstance(url, str)
    assert isinstance(body, dict)
    return url, body
