"""Text forms of tool calls, recognised from a chat template. This module does not depend on tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.chat_template import template_variables


@dataclass(frozen=True)
class CallFormat:
    """Text form of calls: JSON objects with a name and arguments, between two marks or without marks.

    Gemma's calls are no JSON: call:NAME{key:value}, with a mark around every text.
    """

    name: str
    opening: str
    """Mark before each call, "" if there is none."""
    closing: str
    """Mark after each call, "" if there is none."""
    arguments: str
    """Key of the arguments."""
    separator: str
    """Text between two calls."""
    quote: str = '"'
    """Mark before and behind a text."""

    @property
    def is_json(self) -> bool:
        """True if calls are JSON, which grammars have."""
        return self.quote == '"'


FORMATS: Mapping[str, CallFormat] = MappingProxyType(
    {
        each.name: each
        for each in (
            CallFormat("hermes", "<tool_call>", "</tool_call>", "arguments", "\n"),
            CallFormat("llama3", "", "", "parameters", "; "),
            CallFormat("json", "", "", "arguments", "\n"),
            CallFormat("gemma", "<|tool_call>", "<tool_call|>", "", "", quote='<|"|>'),
        )
    }
)
"""Supported formats by name. Qwen2.5 and Qwen3 use Hermes's, Gemma 4 and DiffusionGemma Gemma's."""
_UNSUPPORTED = {"<function=": "qwen3-coder", "[TOOL_CALLS]": "mistral", "<｜tool▁calls▁begin｜>": "deepseek"}
"""Marks of formats that this version cannot write, with the name of each."""


def format_from_template(template: str) -> CallFormat:
    """Return the format of calls that a chat template describes.

    Raises BadInputError for a template that ignores tools, and for a format that is not supported.
    """
    for mark, name in _UNSUPPORTED.items():
        if mark in template:
            raise BadInputError(
                f"the chat template of this model writes tool calls in the format {name}",
                expected="one of the formats " + ", ".join(FORMATS),
                remedy="remove tools",
                operator="serve the bundle with --tool-call-format or another --chat-template",
            )
    if "tools" not in template_variables(template):
        raise BadInputError(
            "the chat template of this model has no tools",
            expected="a chat template that writes the tools into the prompt",
            remedy="remove tools",
            operator="serve the bundle with such a template (--chat-template)",
        )
    for name in ("hermes", "gemma"):
        if FORMATS[name].opening in template:
            return FORMATS[name]
    return FORMATS["llama3" if "ipython" in template or '"parameters":' in template else "json"]
