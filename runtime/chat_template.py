"""A chat template rendered as Hugging Face does, in jinja's sandbox. Does not know token ids.

A template comes with a checkpoint and is not trusted: it cannot reach Python beyond the sandbox, and whatever goes
wrong in it is an error about the template.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lopa.runtime.errors import BadInputError


def text_from_messages(
    template: str, messages: Sequence[Mapping[str, str]], special_tokens: Mapping[str, str], *, source: str
) -> str:
    """The prompt text of a chat, ending where the assistant's answer begins.

    `messages` are {"role", "content"} each; `special_tokens` are the texts of e.g. "bos_token"; `source` names the
    template in errors. Raises BadInputError for other messages and for a template that refuses them or fails.
    """
    _check_messages(messages)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _json_from_value
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _time_now
    plain = [dict(message) for message in messages]
    try:
        return environment.from_string(template).render(
            messages=plain, tools=None, documents=None, add_generation_prompt=True, **special_tokens
        )
    except Exception as error:  # an expression of the template can raise anything
        raise BadInputError(
            f"the chat template of {source} failed: {error or type(error).__name__}",
            expected="messages in the roles and the order that this template allows",
            remedy="change the messages, or write the prompt's text yourself",
        ) from error


class _GenerationBlock(Extension):
    """{% generation %} .. {% endgeneration %}: marks the assistant's words for training; their text is not changed."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own type)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _check_messages(messages: Sequence[Mapping[str, str]]) -> None:
    for number, message in enumerate(messages):
        fields = [message.get(name) for name in ("role", "content")] if isinstance(message, Mapping) else [None]
        if not all(isinstance(field, str) for field in fields):
            raise BadInputError(
                f"message {number} of the chat is {str(message)[:80]}",
                expected='an object with the texts "role" and "content"',
                remedy='e.g. {"role": "user", "content": "Hello"}',
            )
    if not messages:
        raise BadInputError("a chat without messages", expected="at least one message", remedy="give a user message")


def _json_from_value(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The tojson filter without jinja's HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _time_now(layout: str) -> str:
    """The local time, as strftime lays it out."""
    return datetime.now().strftime(layout)
