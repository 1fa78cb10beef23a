"""A chat as a prompt, with its tools, its reasoning and the variables of its template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lopa.runtime.chat.call_format import CallFormat
from lopa.runtime.chat.tool_definition import ToolRequest, tools_from_body
from lopa.runtime.checked_values import invalid_value
from lopa.runtime.errors import FieldError, field_errors
from lopa.runtime.text.chat_template import check_messages, template_variables
from lopa.runtime.text.tokenizer import CHANNEL, THINK

REASONING = "reasoning"
"""Name of the field in errors."""
_SWITCHES: Mapping[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "thinking_option": ("on", "off"),
}
"""Variables by which chat templates switch reasoning on and off, with the values for on and off."""

_KINDS: Sequence[tuple[str, Any, str]] = (
    (REASONING, bool | None, "True, False or None"),
    ("chat_template_kwargs", Mapping, "a mapping of the template's variables to values"),
    ("continues", bool, "True or False"),
    ("call_format", CallFormat | None, "a CallFormat, or None to recognise it from the template"),
)
"""Fields of a chat, with their types and the types in words."""


@dataclass(frozen=True)
class Chat:
    """Messages of a chat, which the bundle's template formats as a prompt. Raises FieldError for an invalid field."""

    messages: Sequence[Mapping[str, Any]]
    """{"role", "content"} each, with "tool_calls", "tool_call_id" and "reasoning_content" as templates read them.

    As in transformers, the arguments of a call are an object. Most templates quote a text of JSON, which HTTP and files
    take as the object.
    """
    tools: Sequence[Mapping[str, Any]] | None = None
    """Definitions of functions in OpenAI's form. The answer then has a grammar, so that its calls are valid."""
    tool_choice: Any = None
    """"none", "auto", "required", or a choice of tools in OpenAI's form; None for "auto"."""
    parallel_tool_calls: bool | None = None
    """True or None if the answer may have several calls."""
    reasoning: bool | None = None
    """True or False to switch reasoning on or off, None for the template's default."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template, as in transformers."""
    continues: bool = False
    """True if the answer continues the last message, which is the assistant's."""
    call_format: CallFormat | None = None
    """Format of calls, or None to recognise it from the template."""

    def __post_init__(self) -> None:
        with field_errors("messages"):
            check_messages(self.messages)
        _ = self._requested_tools  # raises for invalid ones
        for name, kinds, expected in _KINDS:
            value = getattr(self, name)
            if not isinstance(value, kinds):
                with field_errors(name):
                    raise invalid_value(name, value, expected)

    @cached_property
    def _requested_tools(self) -> ToolRequest | None:
        """The checked tools, or None without any."""
        names = ("tools", "tool_choice", "parallel_tool_calls")
        return tools_from_body({name: getattr(self, name) for name in names})

    @property
    def may_call(self) -> bool:
        """True if the answer may call a tool."""
        return self._requested_tools is not None and self._requested_tools.choice != "none"

    def template_kwargs(self, template: str) -> dict[str, Any]:
        """Return the variables of a chat template: those of the chat, and its switch of reasoning.

        Raises FieldError for a variable that the template does not read, and for reasoning that it cannot switch off.
        """
        variables = template_variables(template)
        unknown = next((name for name in self.chat_template_kwargs if name not in variables), None)
        if unknown is not None:
            raise FieldError(
                "chat_template_kwargs",
                f"chat_template_kwargs {unknown!r:.80} is no variable of this model's chat template",
                expected="one of " + (", ".join(sorted(variables & _SWITCHES.keys())) or "no variables"),
                remedy="remove it",
            )
        given = dict(self.chat_template_kwargs)
        if self.reasoning is None or not has_reasoning(template):
            return given
        switch = next((name for name in _SWITCHES if name in variables), None)
        if switch is not None:
            return {switch: _SWITCHES[switch][0 if self.reasoning else 1], **given}
        if self.reasoning:
            return given
        raise FieldError(
            REASONING,
            "the chat template of this model cannot switch reasoning off",
            expected="a template with one of the variables " + ", ".join(_SWITCHES),
            remedy=f"remove {REASONING}, or limit it with reasoning_budget",
        )


def requested_tools(chat: Chat) -> ToolRequest | None:
    """Return the checked tools of a chat, or None without any."""
    return chat._requested_tools


def has_reasoning(template: str) -> bool:
    """Return whether a model with this chat template reasons before it answers."""
    return any(marks[1] in template for marks in (THINK, CHANNEL))
