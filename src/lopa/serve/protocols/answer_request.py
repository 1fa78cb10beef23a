"""A request of any protocol, read from the body of OpenAI's chats or completions."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.serve.chat.chat_options import FIELDS, ChatOptions, chat_options_from_body
from lopa.serve.chat.tool_results import order_tool_results
from lopa.serve.openai.body_options import CHATS, check_neutral
from lopa.serve.openai.field_error import FieldError, field_errors
from lopa.serve.openai.prompt_error import replace_words
from lopa.serve.openai.request import CompletionRequest, request_from_body
from lopa.serve.serve_limits import ServeLimits

Fields = Mapping[str, Any]
"""Fields of a body by their names."""
_NOT_READ = {"n": (1,), "logprobs": (False,), "top_logprobs": (0,), "max_completion_tokens": ()}
"""Fields of a chat that other protocols lack or cannot show in a reply, with the values that change nothing."""


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


def request_from_own_fields(
    body: Fields, own: Fields, names: Mapping[str, str], endpoint: str, limits: ServeLimits, defaults: Fields
) -> AnswerRequest:
    """Return the request in a body of another protocol, whose replies have one choice and no log-probabilities.

    `own` has the fields of a chat that the protocol's own fields stand for, and `names` the protocol's names of such
    fields. All other fields are read as those of a chat. Raises FieldError for an invalid field, in the client's names.
    """
    for name, neutral in _NOT_READ.items():
        check_neutral(name, body.get(name), neutral)
    for name in names.keys() & own.keys():
        if body.get(name) not in (None, own[name]):
            received = f"{name} {shown(body[name])} beside {names[name]}"
            raise FieldError(name, received, expected=names[name], remedy=f"remove {name}")
    names = {name: client for name, client in names.items() if body.get(name) is None}
    with renamed_fields(names):
        found = request_from_openai({**body, **own}, CHATS, limits, defaults)
    for name in ("logprobs", "top_logprobs"):
        check_neutral(found.options.params.get(name, name), found.options.values.get(name), _NOT_READ[name])
    return replace(found, endpoint=endpoint, body=body, names=names)


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
