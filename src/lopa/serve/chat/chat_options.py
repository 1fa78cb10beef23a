"""Options of a chat request that concern its template, its tools and its reasoning."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.chat_template import template_variables
from lopa.runtime.text.reasoning_marks import CLOSING
from lopa.serve.chat.tool_definition import ToolRequest, tools_from_body
from lopa.serve.openai.field_error import FieldError, field_errors

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_REASONING = {
    "reasoning_effort": "one of " + ", ".join(_EFFORTS),
    "reasoning": "an object with an effort among " + ", ".join(_EFFORTS) + ", without enabled, exclude and max_tokens",
    "thinking": "an object with the type enabled, disabled or adaptive, without budget_tokens",
    "enable_thinking": "true or false",
}
"""Fields of several servers that switch reasoning on or off, with their values."""
FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", *_REASONING)
"""Fields of a chat body that this module reads."""
_SWITCHES: Mapping[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "thinking_option": ("on", "off"),
}
"""Variables by which chat templates switch reasoning on and off, with the values for on and off."""


@dataclass(frozen=True)
class ChatOptions:
    """Options of one chat, checked as far as possible without its template."""

    tools: ToolRequest | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reasons: bool | None = None
    """True or False to switch reasoning on or off, None for the template's default."""
    reasons_param: str = "reasoning_effort"
    """Name of the field that `reasons` comes from."""

    @property
    def callable_tools(self) -> ToolRequest | None:
        """Tools, if the answer may call one."""
        return None if self.tools is None or self.tools.choice == "none" else self.tools


def chat_options_from_body(body: Mapping[str, Any]) -> ChatOptions:
    """Return the options of a chat body. Raises FieldError for an invalid field."""
    kwargs = body.get("chat_template_kwargs")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise FieldError(
            "chat_template_kwargs",
            f"chat_template_kwargs {shown(kwargs)} is not an object",
            expected="an object with variables of the chat template",
            remedy='e.g. {"enable_thinking": false}',
        )
    switches = {name: is_on for name in _REASONING if (is_on := _reasons(name, body.get(name))) is not None}
    first = next(iter(switches), "reasoning_effort")
    for name, is_on in switches.items():
        if is_on != switches[first]:
            received = f"{first} {shown(body[first])} and {name} {shown(body[name])}"
            raise FieldError(name, received, expected="one of the two", remedy=f"remove {name}")
    return ChatOptions(tools_from_body(body), kwargs or {}, switches.get(first), first)


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


def kwargs_for_template(options: ChatOptions, template: str, *, param: str) -> dict[str, Any]:
    """Return the variables of a chat template: those of the request, and its switch of reasoning.

    Raises FieldError for a variable that the template does not read. It names the field `param` if reasoning is to be
    switched off and the template has no switch.
    """
    variables = template_variables(template)
    unknown = next((name for name in options.chat_template_kwargs if name not in variables), None)
    if unknown is not None:
        raise FieldError(
            "chat_template_kwargs",
            f"chat_template_kwargs {shown(unknown)} is no variable of this model's chat template",
            expected="one of " + (", ".join(sorted(variables & _SWITCHES.keys())) or "no variables"),
            remedy="remove it",
        )
    if options.reasons is None or not has_reasoning(template):
        return dict(options.chat_template_kwargs)
    switch = next((name for name in _SWITCHES if name in variables), None)
    if switch is None and options.reasons:
        return dict(options.chat_template_kwargs)
    if switch is None:
        with field_errors(param):
            raise BadInputError(
                "the chat template of this model cannot switch reasoning off",
                expected="a template with one of the variables " + ", ".join(_SWITCHES),
                remedy=f"remove {param}, or limit the reasoning with thinking_token_budget",
            )
    assert switch is not None
    return {switch: _SWITCHES[switch][0 if options.reasons else 1], **options.chat_template_kwargs}


def has_reasoning(template: str) -> bool:
    """Return whether a model with this chat template reasons before it answers."""
    return CLOSING in template
