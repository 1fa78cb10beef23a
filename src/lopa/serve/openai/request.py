"""Checked request from the body of an HTTP request: prompts or a chat, copies and form of the reply. This module does
not depend on the engine."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from lopa.runtime.chat.chat import Chat
from lopa.runtime.checked_values import MAX_SECONDS, check_bool, check_float, check_int, shown, wrong_type
from lopa.runtime.errors import BadInputError, FieldError, field_errors
from lopa.runtime.generation_config import did_you_mean
from lopa.runtime.options import DEFAULT_BRANCHES, MAX_AUTO_BRANCHES, MAX_POSITIONS
from lopa.runtime.requests.request import Prompt, check_cache_salt
from lopa.serve.openai.body_options import (
    CACHE_SALT,
    CHATS,
    LENGTH,
    LOPA_FIELD,
    PROMPT_FIELDS,
    BodyOptions,
    lopa_options_from_body,
    options_from_body,
)
from lopa.serve.openai.holes import PARTS, SUFFIX, param_of_holes, text_before_suffix, text_from_parts
from lopa.serve.openai.prompts import messages_from_field, prompts_from_field
from lopa.serve.serve_limits import ServeLimits

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_REASONING = {
    "reasoning_effort": "one of " + ", ".join(_EFFORTS),
    "reasoning": "an object with an effort among " + ", ".join(_EFFORTS) + ", without enabled, exclude and max_tokens",
    "thinking": "an object with the type enabled, disabled or adaptive, without budget_tokens",
    "enable_thinking": "true or false",
}
"""Fields of several servers that switch reasoning on or off, with their values."""
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
CHAT_FIELDS = (*_TOOLS, "chat_template_kwargs", *_REASONING)
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


DEFAULT_TOKENS = 256
"""Default maximum tokens of an answer."""
_HANDLED = ("n", "stream")
_ECHO = "echo"
READ_FIELDS = (*_HANDLED, *CHAT_FIELDS, SUFFIX, _ECHO, "best_of", "add_special_tokens")
"""Fields that some bodies use, although others only accept a value that changes nothing."""
_DEADLINE = "deadline"
_STREAM_OPTIONS = ("include_usage", "include_drafts")
_NEUTRAL_STREAM_OPTIONS = ("continuous_usage_stats", "include_obfuscation")
"""Fields of vLLM and OpenAI that are accepted if they request nothing."""


@dataclass(frozen=True)
class StreamOptions:
    """Content of a stream in addition to the text."""

    usage: bool = False
    drafts: bool = False


@dataclass(frozen=True)
class AnswerRequest:
    """Request from a body of any protocol, checked as far as possible without a bundle."""

    endpoint: str
    model: str
    prompts: tuple[Prompt, ...]
    """Prompts, or one chat."""
    options: BodyOptions
    copies: int
    """Choices for each prompt."""
    deadline: float | None
    """Seconds from now after which the request ends, or None."""
    stream: StreamOptions | None
    """Streaming options; None for a non-streamed reply."""
    cache_salt: str | None
    """Requests with different values share no rows of the prefix cache."""
    param: str
    """Name of the field with the prompts or messages, or of the field with their holes."""
    body: Mapping[str, Any]
    """Body of the client, for replies that repeat parts of it."""
    reasoning_param: str = ""
    """Name of the field that switches the reasoning of a chat."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The client's names of fields, by OpenAI's name in chats, where they differ."""
    echo: bool = False
    """True if the text of a completion begins with its prompt."""

    @property
    def chat(self) -> Chat | None:
        """The chat, or None for a text completion."""
        first = self.prompts[0]
        return first if isinstance(first, Chat) else None

    @property
    def length_param(self) -> str:
        """Client's name of the field that bounds the answer's length."""
        name = self.options.params.get(LENGTH, "max_tokens")
        return self.names.get(name, name)

    @property
    def shortens(self) -> bool:
        """True if the answer may have what the prompt leaves, since the client gave no length."""
        return LENGTH not in self.options.params


def request_from_body(
    body: Mapping[str, Any],
    endpoint: str,
    limits: ServeLimits,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    read: Collection[str] = (),
) -> AnswerRequest:
    """Return the request in `body` to `endpoint`, CHATS or COMPLETIONS, within `limits`.

    `defaults` come from the bundle and the operator. The caller has taken the fields in `read` out of the body. Raises
    FieldError for an invalid field.
    """
    model = body.get("model")
    if not isinstance(model, str):
        raise FieldError(
            "model",
            wrong_type("model", model, "a string"),
            expected="the name of a model",
            remedy="choose one from /v1/models",
        )
    body = {name: value for name, value in body.items() if name != "max_tokens" or not _overrides_max_tokens(body)}
    chat = endpoint == CHATS
    handled = (*_HANDLED, *read, *(CHAT_FIELDS if chat else (SUFFIX, _ECHO)))
    beside = (_DEADLINE,) if chat else (_DEADLINE, PARTS)
    options = options_from_body(body, endpoint, handled=handled, ours_beside=beside)
    param, reasoning_param = PROMPT_FIELDS[endpoint], ""
    prompts: tuple[Prompt, ...]
    with field_errors(param):
        if chat:
            found, reasoning_param = chat_from_body(body, messages_from_field(body.get(param)))
            prompts = (found,)
        else:
            prompts = _prompts_of_completion(body, options, limits, defaults)
    copies = _copies_from_field(body.get("n"), len(prompts), limits)
    stream = _stream_options(body)
    apply_limits(options, limits, defaults)
    deadline = check_deadline(lopa_options_from_body(body).get(_DEADLINE), limits, f"{LOPA_FIELD}.{_DEADLINE}")
    with field_errors(CACHE_SALT):
        cache_salt = check_cache_salt(body.get(CACHE_SALT))
    echo = not chat and _echo(body, options)
    if not chat:
        param = param_of_holes(body) or param
    return AnswerRequest(
        endpoint, model, prompts, options, copies, deadline, stream, cache_salt, param, body, reasoning_param, echo=echo
    )


def _echo(body: Mapping[str, Any], options: BodyOptions) -> bool:
    """Return whether the answer to a completion begins with its prompt. Raises FieldError where it cannot."""
    with field_errors(_ECHO):
        if body.get(_ECHO) is None or not check_bool(_ECHO, body[_ECHO]):
            return False
    other = param_of_holes(body)
    other = options.params["logprobs"] if other is None and options.values.get("logprobs") else other
    if other is not None:
        expected = "one of the two, since a prompt has no log-probabilities here, and holes have a filled_text"
        raise FieldError(_ECHO, f"echo beside {other}", expected=expected, remedy=f"remove {other} or echo")
    return True


def _prompts_of_completion(
    body: Mapping[str, Any], options: BodyOptions, limits: ServeLimits, defaults: Mapping[str, Any]
) -> tuple[Prompt, ...]:
    """Return the prompts of a completion: texts to continue, or texts with holes."""
    parts = lopa_options_from_body(body).get(PARTS)
    if parts is not None:
        return (text_from_parts(parts, body, limits.max_tokens),)
    prompts = prompts_from_field(body.get("prompt"), max_prompts=limits.max_choices)
    suffix = body.get(SUFFIX)
    if suffix is None or suffix == "":
        return tuple(prompts)
    tokens = options.values.get("max_new_tokens", defaults.get("max_new_tokens", DEFAULT_TOKENS))
    return tuple(text_before_suffix(prompt, suffix, tokens) for prompt in prompts)


def _overrides_max_tokens(body: Mapping[str, Any]) -> bool:
    """Return whether max_completion_tokens overrides max_tokens."""
    return body.get("max_completion_tokens") is not None


def _copies_from_field(value: Any, prompts: int, limits: ServeLimits) -> int:
    with field_errors("n"):
        copies = 1 if value is None else check_int("n", value, min=1, max=limits.max_choices)
        if copies * prompts > limits.max_choices:
            raise BadInputError(
                f"n {copies} for {prompts} prompts",
                expected=f"at most {limits.max_choices} choices per request",
                remedy="reduce n or split the request",
            )
        return copies


def _stream_options(body: Mapping[str, Any]) -> StreamOptions | None:
    with field_errors("stream"):
        streamed = body.get("stream") is not None and check_bool("stream", body["stream"])
    given = {} if body.get("stream_options") is None else body["stream_options"]
    if not isinstance(given, dict):
        raise FieldError(
            "stream_options",
            wrong_type("stream_options", given, "an object"),
            expected="an object",
            remedy="send an object",
        )
    unknown = next((name for name in given if name not in _STREAM_OPTIONS), None)
    if unknown is not None and not (unknown in _NEUTRAL_STREAM_OPTIONS and not given[unknown]):
        raise FieldError(
            f"stream_options.{str(unknown)[:80]}",
            f"unknown field {str(unknown)[:80]!r} of stream_options",
            expected=" and ".join(_STREAM_OPTIONS),
            remedy=did_you_mean(unknown, _STREAM_OPTIONS, otherwise="remove it"),
        )
    with field_errors("stream_options"):
        usage, drafts = (check_bool(name, given.get(name) or False) for name in _STREAM_OPTIONS)
    return StreamOptions(usage, drafts) if streamed else None


def apply_limits(options: BodyOptions, limits: ServeLimits, defaults: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Set missing options and reject values beyond the operator's limits. Later checks cover all other values.

    `defaults`, checked by `check_defaults` before, apply if the request has no value.
    """
    longest = MAX_POSITIONS if limits.max_tokens is None else limits.max_tokens
    _check_limit(options, LENGTH, longest)
    options.values.setdefault(LENGTH, min(defaults.get(LENGTH, DEFAULT_TOKENS), longest))
    _check_limit(options, "branches", limits.max_branches)
    branches = options.values.get("branches")
    if branches == "auto" and limits.max_branches < MAX_AUTO_BRANCHES:
        raise _over_limit(options.params["branches"], branches, limits.max_branches)
    if branches is None and "branches" not in defaults and limits.max_branches < DEFAULT_BRANCHES:
        options.values["branches"] = 1
    if limits.max_seconds is not None:
        _check_limit(options, "time_limit", limits.max_seconds)


def _check_limit(options: BodyOptions, name: str, max: float) -> None:
    value = options.values.get(name)
    if isinstance(value, int | float) and value > max:
        raise _over_limit(options.params[name], value, max)


def _over_limit(param: str, value: object, max: float) -> FieldError:
    return FieldError(
        param,
        f"{param} {shown(value)} exceeds this server's limit",
        expected=f"at most {max:g}",
        remedy="reduce it",
    )


def check_deadline(value: Any, limits: ServeLimits, param: str) -> float | None:
    """Return the deadline in seconds from now; None means the maximum. Raises FieldError for an invalid value."""
    if value is None:
        return limits.max_seconds
    upper = MAX_SECONDS if limits.max_seconds is None else limits.max_seconds
    with field_errors(param):
        return check_float(param, value, min=0.0, max=upper, above=True)
