"""Checked request from the tensors and parameters of a Triton request. This module does not depend on the engine."""

from collections.abc import Mapping
from typing import Any

from lopa.runtime.chat.chat import Chat
from lopa.runtime.checked_values import check_bool
from lopa.runtime.errors import FieldError, errors_as_bad_input, field_errors
from lopa.runtime.files.untrusted_input import object_from_json, value_from_json
from lopa.runtime.requests.request import Prompt
from lopa.serve.openai.body_options import BodyOptions
from lopa.serve.openai.prompts import messages_from_field
from lopa.serve.openai.request import AnswerRequest, StreamOptions, apply_limits, check_deadline
from lopa.serve.serve_limits import ServeLimits
from lopa.serve.triton.config_text import DRAFTS, MESSAGES, OPTIONS, STREAM, TEXT

_DEADLINE = "deadline"
_ID = "id"
"""Field of Triton's generate endpoint that also arrives as a parameter."""
_REMEDY = "correct the input"


def request_from_inputs(
    inputs: Mapping[str, Any], parameters: Mapping[str, Any], limits: ServeLimits, defaults: Mapping[str, Any]
) -> AnswerRequest:
    """Return the request in the input tensors (bytes and booleans by name) and the request's parameters.

    An option may be in the JSON object of the input "options" or be a parameter. Raises FieldError for invalid and
    unknown options.
    """
    extra = {name: value for name, value in parameters.items() if name != _ID}
    stream, drafts = (_bool_input(name, inputs.get(name), extra.pop(name, None)) for name in (STREAM, DRAFTS))
    if drafts and not stream:
        raise FieldError(
            DRAFTS, "drafts without stream", expected="drafts together with stream", remedy="set stream to true"
        )
    text, chat = _text_input(TEXT, inputs.get(TEXT)), _text_input(MESSAGES, inputs.get(MESSAGES))
    if (text is None) == (chat is None):
        raise FieldError(
            TEXT,
            f"{'neither' if text is None else 'both'} of {TEXT} and {MESSAGES} given",
            expected=f"a prompt as {TEXT}, or a chat as {MESSAGES}",
            remedy="send one of them",
        )
    given = _parse_options(_text_input(OPTIONS, inputs.get(OPTIONS)))
    options, deadline = BodyOptions(), None
    for source, values in ((f"{OPTIONS}.", given), ("", extra)):
        if values.get(_DEADLINE) is not None:
            deadline = check_deadline(values[_DEADLINE], limits, f"{source}{_DEADLINE}")
        options.put_all(values, source, beside=(_DEADLINE,))
    apply_limits(options, limits, defaults)
    prompt: Prompt
    prompt, param = (_chat(chat or ""), MESSAGES) if text is None else (text, TEXT)
    deadline = limits.max_seconds if deadline is None else deadline
    streamed = StreamOptions(drafts=drafts) if stream else None
    return AnswerRequest("", "", (prompt,), options, 1, deadline, streamed, None, param, {})


def _bool_input(name: str, tensor: Any, parameter: Any) -> bool:
    value = parameter if tensor is None else tensor
    with field_errors(name):
        return False if value is None else check_bool(name, value)


def _text_input(name: str, value: Any) -> str | None:
    if value is None:
        return None
    with (
        field_errors(name),
        errors_as_bad_input(f"input {name}", expected="text in UTF-8", remedy=_REMEDY),
    ):
        return value if isinstance(value, str) else bytes(value).decode()


def _parse_options(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    with field_errors(OPTIONS):
        return object_from_json(text, source=OPTIONS, expected="a JSON object with options", remedy=_REMEDY)


def _chat(text: str) -> Chat:
    with field_errors(MESSAGES):
        found = value_from_json(
            text,
            list[dict[str, Any]],
            source=MESSAGES,
            expected='a JSON list of {"role": string, "content": string}',
            remedy=_REMEDY,
        )
        return Chat(messages_from_field(found))


def parameters_from_text(text: str) -> dict[str, Any]:
    """Return a request's parameters from Triton's JSON text. Raises BadInputError for anything but an object."""
    if not text:
        return {}
    return object_from_json(text, source="parameters", expected="a JSON object", remedy=_REMEDY)


def input_value(name: str, values: Any) -> Any:
    """Return the single element of an input's array. Raises FieldError for any other number of elements."""
    if values.size != 1:
        raise FieldError(name, f"{values.size} elements", expected="one element", remedy="send one request per element")
    return values.reshape(-1)[0]
