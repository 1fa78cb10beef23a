"""Parsing of lines of OpenAI's batch files; openai_answer formats the answers. This module does not use a bundle."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lopa.batch.plain_line import ParsedLine
from lopa.runtime.errors import BadInputError
from lopa.serve.openai.body_options import CHATS, PROMPT_FIELDS, options_from_body
from lopa.serve.openai.field_error import field_errors
from lopa.serve.openai.prompts import check_messages, check_prompt_ids, check_prompt_text, normalize_messages

_MARKS = frozenset(("custom_id", "url", "body"))
"""Keys that only lines of OpenAI's format have."""
_KEYS = frozenset(("custom_id", "method", "url", "body"))
_REMEDY = "correct the line"


def is_openai_line(value: Mapping[str, Any]) -> bool:
    """Return whether an object of a file of prompts has OpenAI's format."""
    return not _MARKS.isdisjoint(value)


def parse_openai_line(value: Mapping[str, Any]) -> ParsedLine:
    """Parse a line of OpenAI's format. Raises BadInputError for fields that would silently be ignored."""
    endpoint, body = endpoint_and_body(value)
    prompt = body.get(PROMPT_FIELDS[endpoint])
    given = options_from_body(body, endpoint)
    with field_errors(PROMPT_FIELDS[endpoint]):
        parsed = _parsed_prompt(prompt, is_chat=endpoint == CHATS)
    return replace(parsed, options=given.values, params=given.params)


def _parsed_prompt(prompt: Any, *, is_chat: bool) -> ParsedLine:
    if is_chat:
        return ParsedLine(messages=normalize_messages(check_messages(prompt)))
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    checked = check_prompt_ids(prompt) if isinstance(prompt, list) else check_prompt_text(prompt)
    return ParsedLine(prompt=checked, raw=True)


def endpoint_and_body(value: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the endpoint, CHATS or COMPLETIONS, and the request's body. Raises BadInputError for any other line."""
    url, body = value.get("url"), value.get("body")
    for name, wrong, expected in (
        ("custom_id", not isinstance(value.get("custom_id"), str), "a text that identifies the answer"),
        ("method", value.get("method", "POST") != "POST", '"POST"'),
        ("url", not isinstance(url, str) or url not in PROMPT_FIELDS, " or ".join(PROMPT_FIELDS)),
        ("body", not isinstance(body, dict), "an object with the request"),
    ):
        if wrong:
            raise BadInputError(f"{name} {str(value.get(name))[:80]}", expected=expected, remedy=_REMEDY)
    if unknown := sorted(set(value) - _KEYS):
        raise BadInputError(
            f"unknown {', '.join(unknown)[:80]!r}", expected=", ".join(sorted(_KEYS)), remedy="correct or remove it"
        )
    assert isinstance(url, str)
    assert isinstance(body, dict)
    return url, body
