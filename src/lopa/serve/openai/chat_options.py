"""Chats in bodies: messages with tools, and the fields of several servers that switch reasoning."""

from collections.abc import Mapping, Sequence
from typing import Any

from lopa.runtime.chat.chat import Chat
from lopa.runtime.checked_values import shown
from lopa.runtime.errors import FieldError

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_REASONING = {
    "reasoning_effort": "one of " + ", ".join(_EFFORTS),
    "reasoning": "an object with an effort among " + ", ".join(_EFFORTS) + ", without enabled, exclude and max_tokens",
    "thinking": "an object with the type enabled, disabled or adaptive, without budget_tokens",
    "enable_thinking": "true or false",
}
"""Fields of several servers that switch reasoning on or off, with their values."""
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
FIELDS = (*_TOOLS, "chat_template_kwargs", *_REASONING)
"""Fields of a chat body that this module reads."""


def chat_from_body(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> tuple[Chat, str]:
    """Return the chat of a body, and the name of the field that switches its reasoning. Raises FieldError."""
    kwargs = body.get("chat_template_kwargs")
    switches = {name: is_on for name in _REASONING if (is_on := _reasons(name, body.get(name))) is not None}
    first = next(iter(switches), "reasoning_effort")
    for name, is_on in switches.items():
        if is_on != switches[first]:
            received = f"{first} {shown(body[first])} and {name} {shown(body[name])}"
            raise FieldError(name, received, expected="one of the two", remedy=f"remove {name}")
    tools: dict[str, Any] = {name: body.get(name) for name in _TOOLS}
    chat = Chat(messages, **tools, reasoning=switches.get(first), chat_template_kwargs={} if kwargs is None else kwargs)
    return chat, first


def _reasons(name: str, value: Any) -> bool | None:
    """Return whether the field `name` switches reasoning on. Raises FieldError for a value that cannot be used."""
    effort = value
    if name == "enable_thinking" and isinstance(value, bool):
        effort = "high" if value else "none"
    elif name == "reasoning" and isinstance(value, dict):
        unused = value.get("max_tokens") is not None or value.get("exclude") or value.get("enabled") is False
        effort = value if unused else value.get("effort")
    elif name == "thinking" and isinstance(value, dict) and value.get("budget_tokens") is None:
        effort = {"enabled": "high", "disabled": "none", "adaptive": None}.get(str(value.get("type")), value)
    if effort is not None and effort not in _EFFORTS:
        raise FieldError(
            name,
            f"{name} {shown(value)}",
            expected=_REASONING[name],
            remedy="correct it; reasoning_effort none switches reasoning off, and thinking_token_budget limits it",
        )
    return None if effort is None else effort != "none"
