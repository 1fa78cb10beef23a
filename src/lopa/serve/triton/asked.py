"""What a request to Triton asks for: from its tensors and parameters to a checked record. Knows no engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lopa.runtime.checked_values import check_bool
from lopa.runtime.files.untrusted_input import object_from_json, refused_as_bad_input, value_from_json
from lopa.runtime.generation_config import OPTIONS as OPTION_NAMES
from lopa.runtime.generation_config import current_names
from lopa.serve.limits import ServeLimits
from lopa.serve.openai.field_error import FieldError, errors_of_field
from lopa.serve.openai.options import BodyOptions
from lopa.serve.openai.request import deadline_within, keep_within, messages_of_field
from lopa.serve.triton.config_text import DRAFTS, MESSAGES, OPTIONS, STREAM, TEXT

_DEADLINE = "deadline"
_IDENTITY = "id"
"""A field of Triton's generate that comes as a parameter too."""
_REMEDY = "correct it"


@dataclass(frozen=True)
class AskedText:
    """One request, checked as far as it can be without a bundle."""

    prompt: str | None
    """None of a chat."""
    messages: list[dict[str, Any]]
    """None of a text."""
    options: BodyOptions
    deadline: float | None
    """Seconds from now."""
    stream: bool
    """Whether committed text is sent as it comes."""
    drafts: bool

    @property
    def param(self) -> str:
        """The input with what is to be answered."""
        return MESSAGES if self.prompt is None else TEXT


def asked_of_inputs(
    inputs: Mapping[str, Any], parameters: Mapping[str, Any], limits: ServeLimits, defaults: Mapping[str, Any]
) -> AskedText:
    """What the input tensors ask for (bytes and booleans, by name), and the request's parameters beside them.

    An option may stand in the JSON object of the input "options", or be a parameter. Raises FieldError for what cannot
    be used, and for what nobody knows.
    """
    beside = {name: value for name, value in parameters.items() if name != _IDENTITY}
    stream, drafts = (_flag(name, inputs.get(name), beside.pop(name, None)) for name in (STREAM, DRAFTS))
    if drafts and not stream:
        raise FieldError(DRAFTS, "drafts of an answer that is not streamed", expected="stream", remedy="ask for both")
    text, chat = _text(TEXT, inputs.get(TEXT)), _text(MESSAGES, inputs.get(MESSAGES))
    if (text is None) == (chat is None):
        raise FieldError(
            TEXT,
            f"{'neither' if text is None else 'both'} of {TEXT} and {MESSAGES}",
            expected=f"a prompt as {TEXT}, or a chat as {MESSAGES}",
            remedy="send one of them",
        )
    given = _options_of_text(_text(OPTIONS, inputs.get(OPTIONS)))
    options, deadline = BodyOptions(), None
    for source, values in ((f"{OPTIONS}.", given), ("", beside)):
        with errors_of_field(OPTIONS):
            named = current_names(values)
        for name, value in named.items():
            param = f"{source}{name[:80]}"
            if name == _DEADLINE and value is not None:
                deadline = deadline_within(value, limits, param)
            elif name in OPTION_NAMES and value is not None:
                options.put(name, [value] if name == "stop" and isinstance(value, str) else value, param)
            elif name not in (*OPTION_NAMES, _DEADLINE):
                raise FieldError(
                    param,
                    f"unknown {name[:80]!r}",
                    expected="options among " + ", ".join((_DEADLINE, *OPTION_NAMES)),
                    remedy="correct or remove it",
                )
    keep_within(options, limits, defaults)
    messages = [] if chat is None else _messages(chat)
    return AskedText(text, messages, options, limits.max_seconds if deadline is None else deadline, stream, drafts)


def _flag(name: str, tensor: Any, parameter: Any) -> bool:
    value = parameter if tensor is None else tensor
    with errors_of_field(name):
        return False if value is None else check_bool(name, value)


def _text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    with (
        errors_of_field(name),
        refused_as_bad_input(f"the input {name}", expected="text in UTF-8", remedy=_REMEDY),
    ):
        return value if isinstance(value, str) else bytes(value).decode()


def _options_of_text(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    with errors_of_field(OPTIONS):
        return object_from_json(text, source=OPTIONS, expected="a JSON object with options", remedy=_REMEDY)


def _messages(text: str) -> list[dict[str, Any]]:
    with errors_of_field(MESSAGES):
        found = value_from_json(
            text,
            list[dict[str, Any]],
            source=MESSAGES,
            expected='a JSON list of {"role": text, "content": text}',
            remedy=_REMEDY,
        )
        return messages_of_field(found)


def parameters_of_text(text: str) -> dict[str, Any]:
    """A request's parameters, which Triton tells in JSON. Raises BadInputError for anything else."""
    if not text:
        return {}
    return object_from_json(text, source="parameters", expected="a JSON object", remedy=_REMEDY)


def input_value(name: str, values: Any) -> Any:
    """The one element of an input's array. Raises FieldError for an array of more, or of none."""
    if values.size != 1:
        raise FieldError(name, f"{values.size} elements", expected="one", remedy="send a request for each")
    return values.reshape(-1)[0]
