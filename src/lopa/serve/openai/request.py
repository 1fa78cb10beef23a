"""What a body over HTTP asks for: answers to prompts or to a chat, how many, in which form. Knows no engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lopa.runtime.checked_values import MAX_SECONDS, check_bool, check_float, check_int
from lopa.runtime.errors import BadInputError
from lopa.runtime.plan import DEFAULT_BRANCHES, MAX_AUTO_BRANCHES, MAX_POSITIONS
from lopa.runtime.text.prompt_ids import Prompt
from lopa.serve.limits import ServeLimits
from lopa.serve.openai.field_error import FieldError, errors_of_field
from lopa.serve.openai.options import CHATS, OURS, PROMPT_FIELDS, BodyOptions, options_of_body, ours_of_body
from lopa.serve.openai.prompt_error import LENGTH
from lopa.serve.openai.prompts import checked_messages, plain_messages, prompts_of_field

USUAL_TOKENS = 256
"""Of an answer whose length nobody asked for."""
_HANDLED = ("n", "stream")
_ROLES = {name: name for name in ("system", "user", "assistant", "tool", "function")} | {"developer": "system"}
"""OpenAI's roles, and what templates call them."""
_DEADLINE = "deadline"
_STREAM_OPTIONS = ("include_usage", "include_drafts")


@dataclass(frozen=True)
class StreamOptions:
    """What a stream has beside the text."""

    usage: bool = False
    drafts: bool = False


@dataclass(frozen=True)
class AskedRequest:
    """A body, checked as far as it can be without a bundle."""

    endpoint: str
    model: str
    prompts: tuple[Prompt, ...]
    """None of a chat."""
    messages: list[dict[str, Any]]
    """None of a text completion."""
    options: BodyOptions
    copies: int
    """Answers to each prompt."""
    deadline: float | None
    """Seconds from now."""
    stream: StreamOptions | None
    """None for one that is answered at once."""

    @property
    def param(self) -> str:
        """The field with what is to be answered."""
        return PROMPT_FIELDS[self.endpoint]

    @property
    def length_param(self) -> str:
        """The field that bounds the answer's length, as the client calls it."""
        return self.options.params.get(LENGTH, "max_tokens")


def request_of_body(
    body: Mapping[str, Any], endpoint: str, limits: ServeLimits, defaults: Mapping[str, Any] = MappingProxyType({})
) -> AskedRequest:
    """Return the request in `body` to `endpoint`, within `limits`; `defaults` are the bundle's and the operator's.

    Raises FieldError for what cannot be done.
    """
    model = body.get("model")
    if not isinstance(model, str):
        raise FieldError(
            "model", f"model {str(model)[:80]}", expected="the name of a model", remedy="take it from /v1/models"
        )
    body = {name: value for name, value in body.items() if name != "max_tokens" or not _has_newer(body)}
    options = options_of_body(body, endpoint, handled=_HANDLED, ours_beside=(_DEADLINE,), ignore_unknown=True)
    param = PROMPT_FIELDS[endpoint]
    with errors_of_field(param):
        chat = endpoint == CHATS
        messages = messages_of_field(body.get(param)) if chat else []
        prompts = () if chat else tuple(prompts_of_field(body.get(param), max=limits.max_choices))
    copies = _number_of_copies(body.get("n"), len(prompts) or 1, limits)
    stream = _stream_of_body(body)
    keep_within(options, limits, defaults)
    deadline = deadline_within(ours_of_body(body).get(_DEADLINE), limits, f"{OURS}.{_DEADLINE}")
    return AskedRequest(endpoint, model, prompts, messages, options, copies, deadline, stream)


def _has_newer(body: Mapping[str, Any]) -> bool:
    """Whether max_tokens has been overruled by the name that took its place."""
    return body.get("max_completion_tokens") is not None


def messages_of_field(value: Any) -> list[dict[str, Any]]:
    """A chat in the roles that templates know; what content a template takes it says itself."""
    messages = plain_messages(checked_messages(value))
    if not messages:
        raise BadInputError("no messages", expected="at least one", remedy='e.g. {"role": "user", "content": "Hello"}')
    for message in messages:
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise BadInputError(f"role {str(role)[:80]}", expected="one of " + ", ".join(_ROLES), remedy="choose one")
        message["role"] = _ROLES[role]
    return messages


def _number_of_copies(value: Any, prompts: int, limits: ServeLimits) -> int:
    with errors_of_field("n"):
        copies = 1 if value is None else check_int("n", value, min=1, max=limits.max_choices)
        if copies * prompts > limits.max_choices:
            raise BadInputError(
                f"n {copies} of {prompts} prompts",
                expected=f"at most {limits.max_choices} answers to one request",
                remedy="ask for fewer at a time",
            )
        return copies


def _stream_of_body(body: Mapping[str, Any]) -> StreamOptions | None:
    with errors_of_field("stream"):
        streamed = body.get("stream") is not None and check_bool("stream", body["stream"])
    given = body.get("stream_options")
    if given is not None and not isinstance(given, dict):
        raise FieldError(
            "stream_options", f"stream_options {str(given)[:80]}", expected="an object", remedy="correct it"
        )
    with errors_of_field("stream_options"):
        usage, drafts = (check_bool(name, (given or {}).get(name) or False) for name in _STREAM_OPTIONS)
    return StreamOptions(usage, drafts) if streamed else None


def keep_within(options: BodyOptions, limits: ServeLimits, defaults: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Set what was not requested, and refuse what is more than the operator allows; other values come later.

    `defaults`, which `check_defaults` has seen, hold where a request does not say.
    """
    upper = MAX_POSITIONS if limits.max_tokens is None else limits.max_tokens
    _check_ceiling(options, LENGTH, upper)
    options.values.setdefault(LENGTH, min(defaults.get(LENGTH, USUAL_TOKENS), upper))
    _check_ceiling(options, "branches", limits.max_branches)
    branches = options.values.get("branches")
    if branches == "auto" and limits.max_branches < MAX_AUTO_BRANCHES:
        raise _above(options.params["branches"], branches, limits.max_branches)
    if branches is None and "branches" not in defaults and limits.max_branches < DEFAULT_BRANCHES:
        options.values["branches"] = 1
    if limits.max_seconds is not None:
        _check_ceiling(options, "time_limit", limits.max_seconds)


def _check_ceiling(options: BodyOptions, name: str, max: float) -> None:
    value = options.values.get(name)
    if isinstance(value, int | float) and value > max:
        raise _above(options.params[name], value, max)


def _above(param: str, value: object, max: float) -> FieldError:
    return FieldError(
        param, f"{param} {str(value)[:80]}", expected=f"at most {max:g} on this server", remedy="ask for less"
    )


def deadline_within(value: Any, limits: ServeLimits, param: str) -> float | None:
    """Seconds from now; None asks for the longest there is. Raises FieldError for what cannot be used."""
    if value is None:
        return limits.max_seconds
    upper = MAX_SECONDS if limits.max_seconds is None else limits.max_seconds
    with errors_of_field(param):
        return check_float(param, value, min=0.0, max=upper, above=True)
