"""A request of any protocol, read from the body of OpenAI's chats or completions."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from lopa.serve.chat.chat_options import FIELDS, ChatOptions, chat_options_from_body
from lopa.serve.chat.tool_results import order_tool_results
from lopa.serve.openai.body_options import CHATS
from lopa.serve.openai.field_error import FieldError, field_errors
from lopa.serve.openai.prompt_error import replace_words
from lopa.serve.openai.request import CompletionRequest, request_from_body
from lopa.serve.serve_limits import ServeLimits


@dataclass(frozen=True)
class AnswerRequest(CompletionRequest):
    """Request of any protocol, checked as far as possible without a bundle."""

    chat: ChatOptions = field(default_factory=ChatOptions)
    body: Mapping[str, Any] = field(default_factory=dict)
    """Body of the client, for replies that repeat parts of it."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The client's names of fields, by OpenAI's name in chats, where they differ."""

    @property
    def length_param(self) -> str:
        """Client's name of the field that bounds the answer's length."""
        return self.param_name(super().length_param)

    def param_name(self, name: str) -> str:
        """Return the client's name of the field that OpenAI's chats call `name`."""
        return self.names.get(name, name)


def request_from_openai(
    body: Mapping[str, Any], endpoint: str, limits: ServeLimits, defaults: Mapping[str, Any] = MappingProxyType({})
) -> AnswerRequest:
    """Return the request in the body of a chat or completion. Raises FieldError for an invalid field."""
    chats = endpoint == CHATS
    base = request_from_body(body, endpoint, limits, defaults, handled=FIELDS if chats else ())
    chat = chat_options_from_body(body) if chats else ChatOptions()
    own = {each.name: getattr(base, each.name) for each in fields(base)}
    with field_errors(base.param):
        own["messages"] = order_tool_results(base.messages)
    return AnswerRequest(**own, chat=chat, body=body)


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the fields of OpenAI's chats in errors to the client's `names`."""
    try:
        yield
    except FieldError as error:
        param = names.get(error.param, error.param)
        texts = (replace_words(each, {error.param: param}) for each in (error.received, error.expected, error.remedy))
        received, expected, remedy = texts
        raise FieldError(param, received, expected=expected, remedy=remedy, code=error.code) from error
