"""Chat templates, rendered as in Hugging Face but in a bounded sandbox. This module does not depend on token IDs.

Templates come with checkpoints and are not trusted. A template reaches no Python objects, and its operations and
characters are bounded (lopa.runtime.template.rendering). Every failure is an error about the template. Messages are not
trusted either: a second rendering shows which characters came from them (lopa.runtime.template.private_characters).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.meta import find_undeclared_variables

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError, errors_as_bad_input, field_errors, raise_if_from_handler
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.template.private_characters import message_marks, to_plain, to_private
from lopa.runtime.template.rendering import Rendering
from lopa.runtime.template.sandbox import (
    FUNCTION_NAMES,
    MAX_TEMPLATE_CHARACTERS,
    compile_template,
    parse_template,
    unsupported_feature,
)

MAX_MESSAGES = 100_000
MAX_KWARGS = 32
MAX_KWARGS_SIZE = 2**16
"""Maximum characters of all further variables of a template."""
_OWN_NAMES = frozenset(("messages", "tools", "documents", "add_generation_prompt", *FUNCTION_NAMES))
"""Names that templates find besides further variables and special tokens."""
NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
MAX_MESSAGE_VALUES = 1_000_000
"""Maximum texts, numbers and lists in all messages together."""
ROLES = (
    *("system", "developer", "user", "assistant", "tool", "function", "ipython"),
    *("environment", "observation", "model", "human", "bot", "gpt"),
)
"""Roles of messages, by the names of all templates."""
"""Roles that a template may turn into a special token ("<|user|>"). Any other role is plain text, like content."""
_NO_TOOLS: Mapping[str, Any] = MappingProxyType({"tools": None, "documents": None, "add_generation_prompt": True})
"""Variables of every template, for a chat without tools."""
_SAMPLE = "What is 2 + 3?"
_MAX_DEPTH = 40
_PARSE_ERRORS = (TemplateError, RecursionError, ValueError)
_CALLS = ("tool_calls", "function_call")
"""Fields with an assistant's calls. A message with one of them may lack content."""
_MESSAGE_FORM = {
    "expected": 'an object with a string "role" and "content": a string, a list of {"type": "text", "text": string}, '
    'or null together with "tool_calls"; other fields may have any JSON value',
    "remedy": 'e.g. {"role": "user", "content": "Hello"}',
}


class RenderedChat:
    """Text of a chat up to the start of the assistant's answer, and where its characters come from."""

    def __init__(
        self,
        template: str,
        messages: Sequence[Mapping[str, Any]],
        special_tokens: Mapping[str, str],
        *,
        name: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] = NO_KWARGS,
        expected: str = "messages with roles in an order that this template allows, and a template within its limits",
        remedy: str = "change the messages, or send a plain prompt",
    ) -> None:
        """Render a chat.

        `messages` have {"role", "content"} and further fields. Content parts of text are joined, and a template that
        loops over parts gets them as one part; content may be None with tool calls. `special_tokens` are texts by name,
        e.g. "bos_token"; `name` names the template in errors. `tools` are definitions of functions in OpenAI's form.
        `chat_template_kwargs` are further variables, e.g. enable_thinking. Raises BadInputError for invalid messages
        and for a template that rejects them, fails or exceeds its budget, and FieldError for invalid tools or
        variables.
        """
        check_messages(messages)
        sizes: list[int] = []
        checked = [_checked_message(number, message, sizes) for number, message in enumerate(messages)]
        characters, sizes = sum(sizes), []
        tokens = tuple(sorted(special_tokens.items()))
        checked = [_in_parts(each) if _takes_only_parts(template, tokens, each["role"]) else each for each in checked]
        with field_errors("tools"):
            given_tools = [_checked(each, sizes, f"tool {number}") for number, each in enumerate(tools or ())]
        with field_errors("chat_template_kwargs"):
            variables = _checked_kwargs(chat_template_kwargs)
        self._template, self._special_tokens, self._name = template, special_tokens, name
        self._given = {**variables, "messages": checked, "tools": given_tools or None}
        self._size = {"messages": len(checked) + len(given_tools), "characters": characters + sum(sizes)}
        self._now = datetime.now()
        with errors_as_bad_input(f"{name} failed", expected=expected, remedy=remedy):
            self.text = self._render(self._given)

    @cached_property
    def marks(self) -> bytes:
        """One byte per character: 1 if it came from a message, a tool or a variable of the request, otherwise 0.

        White space has 0. Raises BadInputError for a template that computes with messages in a way that hides it.
        """
        given = {name: to_private(value) for name, value in self._given.items()}
        for private, message in zip(given["messages"], self._given["messages"], strict=True):
            private[to_private("role")] = message["role"]  # some templates write it into a control token
        private_text = ""
        try:
            private_text = self._render(given, private=True)
        except Exception as error:
            raise_if_from_handler(error)
        if to_plain(private_text) != to_plain(self.text):
            raise BadInputError(
                f"{self._name} hides which characters of the prompt come from messages",
                expected="a template that copies, joins, splits and compares the texts of messages",
                remedy="use another template, or set special_tokens if control tokens in messages may count",
            )
        return message_marks(self.text, private_text)

    def _render(self, given: Mapping[str, Any], *, private: bool = False) -> str:
        try:
            compiled = compile_template(self._template)
            run = Rendering(nodes=compiled.nodes, now=self._now, private=private, **self._size)
            return compiled.render(run, {**_NO_TOOLS, **given, **self._special_tokens})
        except Exception as error:
            raise_if_from_handler(error)
            found = unsupported_feature(error)
            if found is None:
                raise
            raise BadInputError(
                f"{self._name} uses {found[0]}, which is not supported",
                expected=found[1],
                remedy="send a plain prompt",
                operator="use another template (--chat-template)",
            ) from error


def check_template(template: str, special_tokens: Mapping[str, str], *, name: str) -> None:
    """Raise BadInputError unless `template` renders a user's message within its budget.

    `name` names the template in errors, e.g. "the chat template chat.jinja".
    """
    advice: dict[str, Any] = {"expected": "a Jinja chat template as in transformers", "remedy": "correct the template"}
    text = RenderedChat(template, [{"role": "user", "content": _SAMPLE}], special_tokens, name=name, **advice).text
    if _SAMPLE not in text:
        received = f"{name} renders the message {_SAMPLE!r} as {shown(text)}"
        raise BadInputError(
            received,
            expected="a prompt that contains the message",
            operator="use a file with another template (--chat-template)",
        )


@lru_cache(maxsize=64)
def _takes_only_parts(template: str, special_tokens: tuple[tuple[str, str], ...], role: str) -> bool:
    """Return whether `template` loses the text of a message of `role` unless its content is a list of parts.

    A role that the template rejects in a short chat is treated like the user's.
    """
    user_in_parts = role != "user" and _takes_only_parts(template, special_tokens, "user")
    other = (_in_parts if user_in_parts else dict)({"role": "user", "content": "Hello"})
    before = [] if role in ("user", "system", "developer") else [other]
    after = [] if role == "user" else [other]
    for form in (dict, _in_parts):
        found = set()
        for sample in (_SAMPLE, _SAMPLE[::-1]):
            chat = [*before, form({"role": role, "content": sample}), *after]
            names = {**dict(special_tokens), **_NO_TOOLS, "messages": chat}
            try:
                compiled = compile_template(template)
                run = Rendering(nodes=compiled.nodes, messages=3, characters=len(sample), now=datetime.now())
                found.add(compiled.render(run, names))
            except Exception as error:  # raised where the template is used
                raise_if_from_handler(error)
        if len(found) > 1:
            return form is not dict
    return user_in_parts


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return `message` with its content as a list of one text part."""
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": parts}


def template_from_file(path: Path) -> str:
    """Return the text of the template file `path`. Raises BadInputError for a file that is not UTF-8 or too long."""
    expected, remedy = f"a chat template of at most {MAX_TEMPLATE_CHARACTERS} characters in UTF-8", "check the path"
    content = bytes_from_file(path, expected=expected, remedy=remedy, max=4 * MAX_TEMPLATE_CHARACTERS)
    with errors_as_bad_input(str(path), expected=expected, remedy=remedy):
        text = content.decode("utf-8")
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(text), dict):  # a chat_template.json or tokenizer_config.json, not a template
            raise BadInputError(
                f"{path} is a JSON object", expected=expected, remedy="use a file with the text of its chat_template"
            )
    if not 0 < len(text) <= MAX_TEMPLATE_CHARACTERS:
        raise BadInputError(f"{path} has {len(text)} characters", expected=expected, remedy=remedy)
    return text


def text_from_content(content: Any) -> Any:
    """Return content given as text parts as one text, and any other content unchanged.

    Raises BadInputError for parts that are not text.
    """
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadInputError(
                f"unsupported message part {shown(part)}",
                expected='{"type": "text", "text": string}, since the model reads text only',
                remedy="remove the part",
            )
    return "".join(part["text"] for part in content)


def is_markup(text: str, template: str) -> bool:
    """Return whether the template itself writes the markup `text`, such as <tool_call>, or the other mark of its pair.

    Words and white space do not count, since ordinary text contains them too.
    """
    inner = text.strip()
    if len(inner) < 2 or inner.replace(" ", "").isalnum():
        return False
    pair = inner.replace("/", "", 1) if inner[1] == "/" else f"{inner[0]}/{inner[1:]}"
    own = _template_text(template)
    return inner in own or pair in own


@lru_cache(maxsize=8)
def template_variables(template: str) -> frozenset[str]:
    """Return the names that a template reads without setting them, e.g. messages, tools or enable_thinking.

    It is empty for a template that cannot be parsed. The error is raised where the template is used.
    """
    try:
        return frozenset(find_undeclared_variables(parse_template(template)))
    except _PARSE_ERRORS:
        return frozenset()


@lru_cache(maxsize=8)
def _template_text(template: str) -> str:
    """Return everything that the template may write itself: its source and its unescaped texts, concatenated."""
    try:
        found = parse_template(template).find_all((nodes.TemplateData, nodes.Const))
        texts = [getattr(each, "data", None) or getattr(each, "value", None) for each in found]
    except _PARSE_ERRORS:
        return template  # the error is raised where the template is used
    return template + "\0" + "".join(text for text in texts if isinstance(text, str))


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise BadInputError unless `messages` have the form of a chat, with roles among ROLES."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not 0 < len(messages) <= MAX_MESSAGES:
        raise BadInputError(
            f"invalid messages {shown(messages)}",
            expected=f"a list of 1 to {MAX_MESSAGES} messages",
            remedy='e.g. [{"role": "user", "content": "Hello"}]',
        )
    for number, message in enumerate(messages):
        role, content = (
            (message.get(name) for name in ("role", "content")) if isinstance(message, Mapping) else (None, None)
        )
        if isinstance(role, str) and role not in ROLES:
            raise BadInputError(
                f"unknown role {role[:80]}", expected="one of " + ", ".join(ROLES), remedy="choose a role"
            )
        no_content = content is None and isinstance(role, str) and any(message.get(name) for name in _CALLS)
        if not isinstance(role, str) or not (isinstance(text_from_content(content), str) or no_content):
            raise BadInputError(f"message {number} of the chat is {shown(message)}", **_MESSAGE_FORM)


def _checked_message(number: int, message: Mapping[str, Any], sizes: list[int]) -> dict[str, Any]:
    content = text_from_content(message.get("content"))
    checked: dict[str, Any] = _checked({**message, "content": content}, sizes, f"message {number}")
    return {**checked, "role": str(message["role"])}


def _checked_kwargs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return further variables of a template.

    Raises BadInputError for a name that templates use otherwise, and for variables that are too large.
    """
    taken = next(
        (name for name in given if not isinstance(name, str) or name in _OWN_NAMES or name.endswith("_token")), None
    )
    if taken is not None or len(given) > MAX_KWARGS:
        raise BadInputError(
            f"chat_template_kwargs has {len(given)} names" if taken is None else f"chat_template_kwargs {shown(taken)}",
            expected=f"at most {MAX_KWARGS} names that are free for the template, such as enable_thinking",
            remedy="remove it" if taken is not None else "remove some",
        )
    sizes: list[int] = []
    checked = {str(name): _checked(value, sizes, "chat_template_kwargs") for name, value in given.items()}
    if sum(sizes) > MAX_KWARGS_SIZE:
        raise BadInputError(
            f"chat_template_kwargs has {sum(sizes)} characters",
            expected=f"at most {MAX_KWARGS_SIZE}",
            remedy="send text as messages",
        )
    return checked


def _checked(value: Any, sizes: list[int], where: str, depth: int = 0) -> Any:
    """Return a copy of a part of `where`, e.g. "message 2", and append the lengths of its texts to `sizes`."""
    if isinstance(value, str):
        sizes.append(len(value))
        return str(value)
    sizes.append(8)
    if depth > _MAX_DEPTH or len(sizes) > MAX_MESSAGE_VALUES:
        raise BadInputError(f"{where} of the chat is nested too deeply, or the chat is too large", **_MESSAGE_FORM)
    if isinstance(value, Mapping):
        pairs = {name: _checked(each, sizes, where, depth + 1) for name, each in value.items()}
        return {_key(name, where): each for name, each in pairs.items()}
    if isinstance(value, (list, tuple)):
        return [_checked(each, sizes, where, depth + 1) for each in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise BadInputError(f"{where} of the chat contains {shown(value)}", **_MESSAGE_FORM)


def _key(name: Any, where: str) -> str:
    """Return a field name. Raises BadInputError for any other key."""
    if not isinstance(name, str):
        raise BadInputError(f"{where} of the chat has the key {shown(name)}", **_MESSAGE_FORM)
    return str(name)
