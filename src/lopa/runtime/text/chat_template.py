"""A chat template rendered as Hugging Face does, in a bounded environment of our own. Does not know token ids.

A template comes with a checkpoint and is not trusted: it reaches nothing of Python, cannot use more than a bounded
number of operations and characters (lopa.runtime.template.budget), and whatever goes wrong in it is an error about the
template. The texts of messages are not trusted either: the rendered text says which of its characters they brought.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, refused_as_bad_input
from lopa.runtime.template.budget import Budget
from lopa.runtime.template.functions import template_functions
from lopa.runtime.template.run import TemplateRun
from lopa.runtime.template.text import from_message

MAX_TEMPLATE_CHARACTERS = 100_000
"""Three times the largest of any checkpoint known."""
MAX_MESSAGES = 100_000
MAX_MESSAGE_VALUES = 1_000_000
"""Texts, numbers and lists in all messages together."""
ROLES = frozenset(
    {
        *("system", "developer", "user", "assistant", "tool", "function", "ipython"),
        *("environment", "observation", "model", "human", "bot", "gpt"),
    }
)
"""Roles that a template may make a special token of ("<|user|>"); any other role is text like a content."""
_SAMPLE = "What is 2 + 3?"
_DEEPEST_MESSAGE = 40
_CALLS = ("tool_calls", "function_call")
"""Fields with what an assistant called: beside one of them there may be no content."""
_FORM = {
    "expected": 'an object with "role", a text, and "content": a text, a list of {"type": "text", "text": text}, or '
    'null beside "tool_calls"; other fields hold what JSON holds',
    "remedy": 'e.g. {"role": "user", "content": "Hello"}',
}


def text_from_messages(
    template: str, messages: Sequence[Mapping[str, Any]], special_tokens: Mapping[str, str], *, source: str
) -> str:
    """The prompt text of a chat, ending where the assistant's answer begins.

    `messages` are {"role", "content"} each and what else they hold; a content in parts of text is one text, and None is
    taken beside tool calls. `special_tokens` are the texts of e.g. "bos_token"; `source` names the
    template in errors. Which characters came from messages says lopa.runtime.template.text.marks_of. Raises
    BadInputError for other messages and for a template that refuses them, fails, or uses too much of anything.
    """
    return _rendered(
        template,
        messages,
        special_tokens,
        name=f"the chat template of {source}",
        expected="messages in the roles and the order that this template allows, and a template within its bounds",
        remedy="change the messages, or write the prompt's text yourself",
    )


def check_template(template: str, special_tokens: Mapping[str, str], *, name: str) -> None:
    """Raise BadInputError unless `template` makes a prompt of a user's message within its budget.

    `name` is what errors call the template, e.g. "the chat template chat.jinja".
    """
    words = {"expected": "a Jinja chat template, as transformers has it", "remedy": "correct the template"}
    text = _rendered(template, [{"role": "user", "content": _SAMPLE}], special_tokens, name=name, **words)
    if _SAMPLE not in text:
        received = f"{name} makes the prompt {shown(str(text))} of the message {_SAMPLE!r}"
        raise BadInputError(
            received, expected="a prompt with the message in it", remedy="give a file that holds the template itself"
        )


def _rendered(
    template: str,
    messages: Sequence[Mapping[str, str]],
    special_tokens: Mapping[str, str],
    *,
    name: str,
    expected: str,
    remedy: str,
) -> str:
    plain, characters = _checked_messages(messages)
    budget = Budget(messages=len(plain), characters=characters)
    names = {
        **special_tokens,
        **template_functions(budget),
        "messages": plain,
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
    }
    with refused_as_bad_input(f"{name} failed", expected=expected, remedy=remedy):
        return TemplateRun(budget, names).text(_parsed(template))


def template_from_file(path: Path) -> str:
    """Return the text of the template file `path`. Raises BadInputError for a file that is not UTF-8 or too long."""
    expected, remedy = f"a chat template of at most {MAX_TEMPLATE_CHARACTERS} characters in UTF-8", "check the path"
    content = bytes_from_file(path, expected=expected, remedy=remedy, max=4 * MAX_TEMPLATE_CHARACTERS)
    with refused_as_bad_input(str(path), expected=expected, remedy=remedy):
        text = content.decode("utf-8")
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(text), dict):  # chat_template.json or tokenizer_config.json
            raise BadInputError(
                f"{path} is a JSON object", expected=expected, remedy="give a file with the text of its chat_template"
            )
    if not 0 < len(text) <= MAX_TEMPLATE_CHARACTERS:
        raise BadInputError(f"{path} has {len(text)} characters", expected=expected, remedy=remedy)
    return text


def text_of_content(content: Any) -> Any:
    """Return a content that comes in parts of text as one text, and any other as it is.

    Raises BadInputError for parts that are no text.
    """
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadInputError(
                f"a part of a message {shown(part)}",
                expected='{"type": "text", "text": text}: the model reads text only',
                remedy="remove the part",
            )
    return "".join(part["text"] for part in content)


def is_markup(text: str, template: str) -> bool:
    """Return whether the template itself writes the mark `text`, such as <tool_call>, or the other one of its pair.

    Words and white space are none: a template shares them with ordinary text.
    """
    inner = text.strip()
    if len(inner) < 2 or inner.replace(" ", "").isalnum():
        return False
    pair = inner.replace("/", "", 1) if inner[1] == "/" else f"{inner[0]}/{inner[1:]}"
    own = _own_text(template)
    return inner in own or pair in own


@lru_cache(maxsize=8)
def _own_text(template: str) -> str:
    """All that the template may write of itself: its source, and its texts without escapes, one behind the other."""
    try:
        found = _parsed(template).find_all((nodes.TemplateData, nodes.Const))
        texts = [getattr(each, "data", None) or getattr(each, "value", None) for each in found]
    except (TemplateError, RecursionError):
        return template  # it is refused where it is used
    return template + "\0" + "".join(text for text in texts if isinstance(text, str))


@lru_cache(maxsize=8)
def _parsed(template: str) -> nodes.Template:
    """The syntax tree; nothing of it is run."""
    if len(template) > MAX_TEMPLATE_CHARACTERS:
        raise TemplateError(f"it has more than {MAX_TEMPLATE_CHARACTERS} characters")
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols], optimized=False
    )
    return environment.parse(template)


class _GenerationBlock(Extension):
    """{% generation %} .. {% endgeneration %}: marks the assistant's words for training; their text is not changed."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own type)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _checked_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The messages as the template gets them, and how many characters they hold."""
    if not isinstance(messages, Sequence):
        raise BadInputError(f"a chat {shown(messages)}", expected="a list of messages", remedy=_FORM["remedy"])
    if not messages:
        raise BadInputError("a chat without messages", expected="at least one message", remedy="give a user message")
    if len(messages) > MAX_MESSAGES:
        raise BadInputError(
            f"a chat of {len(messages)} messages",
            expected=f"at most {MAX_MESSAGES}",
            remedy="leave the first ones out",
        )
    sizes: list[int] = []
    return [_checked_message(number, message, sizes) for number, message in enumerate(messages)], sum(sizes)


def _checked_message(number: int, message: Any, sizes: list[int]) -> dict[str, Any]:
    role, content = (
        (message.get(name) for name in ("role", "content")) if isinstance(message, Mapping) else (None, None)
    )
    content = text_of_content(content)
    no_content = content is None and isinstance(role, str) and any(message.get(name) for name in _CALLS)
    if not isinstance(role, str) or not (isinstance(content, str) or no_content):
        raise BadInputError(f"message {number} of the chat is {shown(message)}", **_FORM)
    made: dict[str, Any] = _from_json({**message, "content": content}, sizes, number)
    if role in ROLES:
        made["role"] = str(role)
    return made


def _from_json(value: Any, sizes: list[int], number: int, depth: int = 0) -> Any:
    """A field of message `number`, every text in it known to come from there; `sizes` gets their lengths."""
    if isinstance(value, str):
        sizes.append(len(value))
        return from_message(str(value))
    sizes.append(8)
    if depth > _DEEPEST_MESSAGE or len(sizes) > MAX_MESSAGE_VALUES:
        raise BadInputError(f"message {number} of the chat is nested too deeply, or the chat too large", **_FORM)
    if isinstance(value, Mapping):
        pairs = {name: _from_json(each, sizes, number, depth + 1) for name, each in value.items()}
        return {_key(name, number): each for name, each in pairs.items()}
    if isinstance(value, (list, tuple)):
        return [_from_json(each, sizes, number, depth + 1) for each in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise BadInputError(f"message {number} of the chat holds {shown(value)}", **_FORM)


def _key(name: Any, number: int) -> str:
    """A name within a message, which is text like a content: some templates write "<" ~ name ~ ">"."""
    if not isinstance(name, str):
        raise BadInputError(f"message {number} of the chat has the key {shown(name)}", **_FORM)
    return from_message(str(name))
