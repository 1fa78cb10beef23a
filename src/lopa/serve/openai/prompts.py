"""What a body wants answered: prompts or a chat, checked as far as their form goes. Knows no tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.chat_template import text_of_content
from lopa.runtime.text.prompt_ids import Prompt

Messages = Sequence[Mapping[str, Any]]
_REMEDY = "correct it"


def checked_text(value: object) -> str:
    """A prompt as text. Raises BadInputError for anything else, as its sisters below do."""
    if isinstance(value, str):
        return value
    raise BadInputError(f"prompt {str(value)[:80]}", expected="text", remedy=_REMEDY)


def checked_ids(value: object) -> list[int]:
    """A prompt as ids, whose range the decoder judges."""
    if isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        return value
    raise BadInputError(f"prompt ids {str(value)[:80]}", expected="a list of whole numbers", remedy=_REMEDY)


def checked_messages(value: object) -> Messages:
    """A chat as far as that it is a list of objects; roles and contents are judged where it becomes a prompt."""
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return value
    raise BadInputError(
        f"messages {str(value)[:80]}", expected='a list of {"role": text, "content": text}', remedy=_REMEDY
    )


def prompts_of_field(value: object, *, max: int) -> list[Prompt]:
    """One or several prompts: a text, a list of texts, a list of ids or a list of such lists; from 1 to `most`."""
    several = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
    given: list[Any] = value if isinstance(value, list) and several else [value]
    if len(given) > max:
        raise BadInputError(f"{len(given)} prompts", expected=f"at most {max}", remedy="ask for the others later")
    return [checked_ids(each) if isinstance(each, list) else checked_text(each) for each in given]


def plain_messages(messages: Messages) -> list[dict[str, Any]]:
    """Messages as chat templates like them, from the form in which OpenAI's clients send them.

    Fields that are null are left out, but for the content beside tool calls. The arguments of a call, which come as the
    text of a JSON object, become that object; no text is an empty one, and what is no object stays text.
    """
    return [
        {
            name: _plain_value(name, value)
            for name, value in each.items()
            if value is not None or (name == "content" and each.get("tool_calls"))
        }
        for each in messages
    ]


def _plain_value(name: str, value: Any) -> Any:
    if name == "tool_calls" and isinstance(value, list):
        return [_plain_call(call) for call in value]
    return text_of_content(value) if name == "content" else value


def _plain_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(value: Any) -> Any:
    if value is None or value == "":
        return {}
    try:
        found = msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return value  # a call that was cut off: whether it can be shown is for the template to say
    return found if isinstance(found, dict) else value
