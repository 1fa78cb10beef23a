"""The fields of a body that are decoding options, by our names. Knows no bundle and none of an operator's limits.

Of OpenAI's fields some are options of ours (_OPTIONS), some may only have the value that changes nothing (_ONLY), some
mean nothing here (_IGNORED); those of other servers are in foreign_options. Options of ours that OpenAI's API lacks are
in the object "lopa".
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import OPTIONS, current_names
from lopa.serve.openai.field_error import FieldError, errors_of_field
from lopa.serve.openai.foreign_options import HINTS, MAPPED, NEUTRAL, is_neutral
from lopa.serve.openai.response_format import option_of_response_format

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
"""The endpoints that are known."""
PROMPT_FIELDS = {CHATS: "messages", COMPLETIONS: "prompt"}
"""What of the body is to be answered, by endpoint."""
OURS = "lopa"
"""The field with options that OpenAI's API lacks."""
_OPTIONS = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "stop": "stop",
    "logprobs": "logprobs",
}
_ONLY: dict[str, tuple[object, ...]] = {
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
_DRAWN = "seed"
"""Option whose null in the object "lopa" means something: a seed that is drawn."""
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
    """Options by the names of GenerationConfig, and which field of the body each came from."""

    values: dict[str, Any] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: Any, param: str) -> None:
        """Add an option. Raises FieldError for one that is there with another value."""
        if self.values.setdefault(name, value) != value:
            raise FieldError(
                param,
                f"{name} is asked for twice: {str(self.values[name])[:40]} and {str(value)[:40]}",
                expected="one value",
                remedy="leave one of them out",
            )
        self.params.setdefault(name, param)


def options_of_body(
    body: Mapping[str, Any],
    endpoint: str,
    *,
    handled: Collection[str] = (),
    ours_beside: Collection[str] = (),
    ignore_unknown: bool = False,
) -> BodyOptions:
    """The options of a body for `endpoint`; null is what was not given.

    Fields in `handled` are the caller's, and so are names in `ours_beside` inside "lopa". With `ignore_unknown` a field
    that nobody knows means nothing, unless it is the name of an option of ours, which belongs into "lopa". Raises
    FieldError for anything else that would change the answer unheard.
    """
    known = PROMPT_FIELDS[endpoint]
    options = BodyOptions()
    for name, value in body.items():
        if value is None or name in _IGNORED or name in (known, OURS) or name in handled:
            continue
        if name in _ONLY:
            _check_only(name, value, _ONLY[name])
        elif name in NEUTRAL:
            _check_only(name, value, NEUTRAL[name])
        elif name in MAPPED:
            with errors_of_field(name):
                for option, wanted in MAPPED[name](value).items():
                    options.put(option, wanted, name)
        elif name == _FORMAT:
            with errors_of_field(name):
                for option, wanted in option_of_response_format(value).items():
                    options.put(option, wanted, name)
        elif name in _OPTIONS:
            with errors_of_field(name):
                options.put(_OPTIONS[name], _READ.get((known, name), _READ.get(("", name), _as_it_is))(value), name)
        elif name in OPTIONS:
            raise FieldError(
                name[:80],
                f"{name[:80]!r} in the body",
                expected='options that OpenAI\'s API lacks in the object "lopa"',
                remedy=f'write "lopa": {{"{name[:80]}": ...}}',
            )
        elif not ignore_unknown:
            raise FieldError(
                name[:80],
                f"{name[:80]!r} in the body",
                expected=", ".join((known, *_OPTIONS, _FORMAT, *MAPPED, OURS)),
                remedy="remove it: it cannot be done, or is not known, here",
            )
    with errors_of_field(OURS):
        ours = current_names(ours_of_body(body))
    for name, value in ours.items():
        if name in ours_beside:
            continue
        param = f"{OURS}.{name[:80]}"
        if name not in OPTIONS:
            raise FieldError(
                param,
                f"unknown {name[:80]!r} in lopa",
                expected="options among " + ", ".join((*ours_beside, *OPTIONS)),
                remedy="correct or remove it",
            )
        if value is not None or name == _DRAWN:
            options.put(name, value, param)
    return options


def ours_of_body(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object "lopa" of a body, empty where there is none. Raises FieldError for what is no object."""
    ours = body.get(OURS)
    if ours is not None and not isinstance(ours, dict):
        raise FieldError(OURS, f"lopa {str(ours)[:80]}", expected="an object with options", remedy="correct it")
    return ours or {}


def _check_only(name: str, value: object, neutral: tuple[object, ...]) -> None:
    if is_neutral(value, neutral):
        return
    words = [json.dumps(each) for each in neutral] + ["null"]
    raise FieldError(
        name,
        f"{name} {str(value)[:80]}, which would change the answer and is not supported",
        expected=f"{' or '.join(words)}, or nothing",
        remedy="remove it, or ask for each answer in a line of its own"
        if name == "n"
        else HINTS.get(name, "remove it"),
    )


def _as_it_is(value: Any) -> Any:
    return value


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _number_of_logprobs(value: Any) -> bool:
    """Completions ask for a number of alternatives beside each token's own log-probability."""
    if value != 0 or isinstance(value, bool):
        raise BadInputError(
            f"logprobs {str(value)[:80]}", expected="0: those of the answer's own tokens", remedy="give 0 or remove it"
        )
    return True


_READ: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("", "stop"): _stops,
    ("prompt", "logprobs"): _number_of_logprobs,
}
"""How a value becomes ours where it is not as it is, by the field that is answered ("": either) and by name."""
