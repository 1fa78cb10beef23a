"""What a body wants answered: prompts or a chat, checked as far as their form goes. Knows no tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

from lopa.runtime.errors import BadInputError
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


def prompts_of_field(value: object, *, most: int) -> list[Prompt]:
    """One or several prompts: a text, a list of texts, a list of ids or a list of such lists; from 1 to `most`."""
    several = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
    given: list[Any] = value if isinstance(value, list) and several else [value]
    if len(given) > most:
        raise BadInputError(f"{len(given)} prompts", expected=f"at most {most}", remedy="ask for the others later")
    return [checked_ids(each) if isinstance(each, list) else checked_text(each) for each in given]


def plain_messages(messages: Messages) -> list[dict[str, Any]]:
    """Messages whose content may come in parts of text, without fields that are null."""
    return [
        {
            name: _text_of_parts(value) if name == "content" else value
            for name, value in each.items()
            if value is not None
        }
        for each in messages
    ]


def _text_of_parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadInputError(
                f"a part of a message {str(part)[:80]}",
                expected='{"type": "text", "text": text}: the model reads text only',
                remedy="remove the part",
            )
    return "".join(part["text"] for part in content)
