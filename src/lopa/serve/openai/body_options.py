"""Decoding options in a request body, by lopa's names. This module does not depend on bundles or the operator's limits.

OpenAI's fields in _OPTIONS become lopa options. Fields in _NEUTRAL_ONLY accept neutral values only, and fields in
_IGNORED have no effect. Fields of other servers are in foreign_options. Options that OpenAI's API lacks are in the
object "lopa".
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import OPTIONS, current_names
from lopa.serve.openai.field_error import FieldError, field_errors
from lopa.serve.openai.foreign_options import HINTS, MAPPED, NEUTRAL, is_neutral
from lopa.serve.openai.response_format import option_from_response_format

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
"""Paths of the supported endpoints."""
PROMPT_FIELDS = {CHATS: "messages", COMPLETIONS: "prompt"}
"""Field with the prompt or chat, by endpoint."""
LOPA_FIELD = "lopa"
"""Field with the options that OpenAI's API lacks."""
_OPTIONS = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "stop": "stop",
    "logprobs": "logprobs",
}
_NEUTRAL_ONLY: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "echo": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({}, []),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "suffix": ("",),
}
_NULLABLE = "seed"
"""Option with a meaning for null in the object "lopa": a random seed."""
_FORMAT = "response_format"
_IGNORED = frozenset(
    (
        "model",
        "user",
        "metadata",
        "store",
        "service_tier",
        "stream_options",
        "parallel_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
        "cache_salt",
        "guided_decoding_backend",
        "priority",
        "request_id",
    )
)


@dataclass
class BodyOptions:
    """Options by the names of GenerationConfig, with the body field that each came from."""

    values: dict[str, Any] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: Any, param: str) -> None:
        """Add an option. Raises FieldError if it already has another value."""
        if self.values.setdefault(name, value) != value:
            raise FieldError(
                param,
                f"{name} has two values: {str(self.values[name])[:40]} and {str(value)[:40]}",
                expected="one value",
                remedy="remove one of the fields",
            )
        self.params.setdefault(name, param)


def options_from_body(
    body: Mapping[str, Any],
    endpoint: str,
    *,
    handled: Collection[str] = (),
    ours_beside: Collection[str] = (),
    ignore_unknown: bool = False,
) -> BodyOptions:
    """Return the options of a body for `endpoint`; null means not given.

    The caller handles the fields in `handled`, and the names in `ours_beside` inside "lopa". With `ignore_unknown`
    unknown fields have no effect, except names of lopa options, which belong in "lopa". Raises FieldError for any
    other field that would change the answer silently.
    """
    prompt_field = PROMPT_FIELDS[endpoint]
    options = BodyOptions()
    for name, value in body.items():
        if value is None or name in _IGNORED or name in (prompt_field, LOPA_FIELD) or name in handled:
            continue
        if name in _NEUTRAL_ONLY:
            _check_neutral(name, value, _NEUTRAL_ONLY[name])
        elif name in NEUTRAL:
            _check_neutral(name, value, NEUTRAL[name])
        elif name in MAPPED:
            with field_errors(name):
                for option, option_value in MAPPED[name](value).items():
                    options.put(option, option_value, name)
        elif name == _FORMAT:
            with field_errors(name):
                for option, option_value in option_from_response_format(value).items():
                    options.put(option, option_value, name)
        elif name in _OPTIONS:
            with field_errors(name):
                options.put(
                    _OPTIONS[name],
                    _CONVERSIONS.get((prompt_field, name), _CONVERSIONS.get(("", name), _identity))(value),
                    name,
                )
        elif name in OPTIONS:
            raise FieldError(
                name[:80],
                f"option {name[:80]!r} at the top level of the body",
                expected='lopa options in the object "lopa"',
                remedy=f'write "lopa": {{"{name[:80]}": ...}}',
            )
        elif not ignore_unknown:
            raise FieldError(
                name[:80],
                f"unknown field {name[:80]!r}",
                expected=", ".join((prompt_field, *_OPTIONS, _FORMAT, *MAPPED, LOPA_FIELD)),
                remedy="remove it; this server does not support it",
            )
    with field_errors(LOPA_FIELD):
        ours = current_names(lopa_options_from_body(body))
    for name, value in ours.items():
        if name in ours_beside:
            continue
        param = f"{LOPA_FIELD}.{name[:80]}"
        if name not in OPTIONS:
            raise FieldError(
                param,
                f"unknown option {name[:80]!r} in lopa",
                expected="options among " + ", ".join((*ours_beside, *OPTIONS)),
                remedy="correct or remove it",
            )
        if value is not None or name == _NULLABLE:
            options.put(name, value, param)
    return options


def lopa_options_from_body(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object "lopa" of a body, or an empty one. Raises FieldError for any other type."""
    lopa_object = body.get(LOPA_FIELD)
    if lopa_object is not None and not isinstance(lopa_object, dict):
        raise FieldError(
            LOPA_FIELD,
            f"lopa {str(lopa_object)[:80]} is not an object",
            expected="an object with options",
            remedy="send an object",
        )
    return lopa_object or {}


def _check_neutral(name: str, value: object, neutral: tuple[object, ...]) -> None:
    if is_neutral(value, neutral):
        return
    choices = [json.dumps(each) for each in neutral] + ["null"]
    raise FieldError(
        name,
        f"{name} {str(value)[:80]} is not supported",
        expected=f"{' or '.join(choices)}, or no such field",
        remedy="remove it, or write one line per answer" if name == "n" else HINTS.get(name, "remove it"),
    )


def _identity(value: Any) -> Any:
    return value


def _stop_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _logprobs_flag(value: Any) -> bool:
    """Return True for 0, which requests the log-probability of each token.

    Other values also request alternatives, which are not supported.
    """
    if value != 0 or isinstance(value, bool):
        raise BadInputError(
            f"logprobs {str(value)[:80]}",
            expected="0, the log-probabilities of the generated tokens",
            remedy="use 0 or remove it",
        )
    return True


_CONVERSIONS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("", "stop"): _stop_list,
    ("prompt", "logprobs"): _logprobs_flag,
}
"""Conversions of values, by prompt field ("" for both endpoints) and field name."""
