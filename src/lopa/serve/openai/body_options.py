"""Decoding options in a request body, by lopa's names. This module does not depend on bundles or the operator's limits.

OpenAI's fields in _OPTIONS become lopa options; foreign_options lists others. Options that OpenAI's API lacks are in
the object "lopa".
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lopa.runtime.checked_values import check_int, shown, wrong_type
from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import FieldError, field_errors
from lopa.runtime.generation_config import OPTIONS, did_you_mean
from lopa.runtime.strategy.installed import strategy_with_option
from lopa.serve.openai.foreign_options import (
    HINTS,
    IGNORED,
    MAPPED,
    NEUTRAL,
    is_neutral,
    option_from_response_format,
    option_reader,
)

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
"""Paths of the endpoints that answer: OpenAI's, and Anthropic's messages."""
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
"""Paths about tokens, as in Anthropic's API and in vLLM."""
SCORES = "/v1/score"
"""Path of the endpoint that scores given choices."""
PROMPT_FIELDS = {CHATS: "messages", COMPLETIONS: "prompt", MESSAGES: "messages", RESPONSES: "input"}
"""Field with the prompt or chat, by endpoint."""
CACHE_SALT = "cache_salt"
"""Field that separates prefix caches, as in vLLM and SGLang. It is not a decoding option."""
LOPA_FIELD = "lopa"
"""Field with the options that OpenAI's API lacks."""
_OPTIONS = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_new_tokens"),
    **{name: name for name in ("temperature", "top_p", "seed", "stop", "logprobs", "top_logprobs")},
}


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
                f"{name} has two values: {shown(self.values[name])} and {shown(value)}",
                expected="one value",
                remedy="remove one of the fields",
            )
        self.params.setdefault(name, param)

    def put_all(self, values: Mapping[str, Any], prefix: str, *, beside: Collection[str]) -> None:
        """Add options by name, from fields whose names have `prefix`; the caller handles the names in `beside`.

        null means not given. Raises FieldError for an unknown name.
        """
        for name, value in values.items():
            if name not in (*OPTIONS, *beside):
                raise FieldError(
                    f"{prefix}{name[:80]}",
                    f"unknown option {name[:80]!r}",
                    expected="a decoding option of docs/reference/commands.md",
                    remedy=did_you_mean(name, (*beside, *OPTIONS)),
                )
            if name not in beside and value is not None:
                self.put(name, value, f"{prefix}{name}")


def options_from_body(
    body: Mapping[str, Any],
    endpoint: str,
    *,
    handled: Collection[str] = (),
    ours_beside: Collection[str] = (),
) -> BodyOptions:
    """Return the options of a body for `endpoint`; null means not given.

    The caller handles the fields in `handled`, and the names in `ours_beside` inside "lopa". Raises FieldError for a
    field that is unknown, or would change the answer and is not supported.
    """
    options, is_text = BodyOptions(), endpoint == COMPLETIONS and not _is_ids(body.get("prompt"))
    for name, value in body.items():
        if value is None or name in IGNORED or name in (PROMPT_FIELDS[endpoint], LOPA_FIELD, CACHE_SALT, *handled):
            continue
        if name == "best_of":  # all answers that are decoded are returned
            check_neutral(name, value, (1 if body.get("n") is None else body["n"],))
            continue
        if name in _READERS:
            is_number = (endpoint, name) == (COMPLETIONS, "logprobs")
            with field_errors(name):
                for option, option_value in (_logprobs_of_completion if is_number else _READERS[name])(value).items():
                    options.put(option, option_value, name)
        elif name == "add_special_tokens" and endpoint == COMPLETIONS:
            check_neutral(name, value, (True,) if is_text else (True, False))  # token ids get none
        elif name in NEUTRAL:
            check_neutral(name, value, NEUTRAL[name])
        else:
            raise _unknown_field(name, (*_READERS, *handled, PROMPT_FIELDS[endpoint], CACHE_SALT, LOPA_FIELD))
    with field_errors(LOPA_FIELD):
        ours = lopa_options_from_body(body)
    options.put_all(ours, f"{LOPA_FIELD}.", beside=ours_beside)
    _check_top_logprobs(options)
    return options


def lopa_options_from_body(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object "lopa" of a body, or an empty one. Raises FieldError for any other type."""
    lopa_object = body.get(LOPA_FIELD)
    if lopa_object is not None and not isinstance(lopa_object, dict):
        raise FieldError(
            LOPA_FIELD,
            wrong_type(LOPA_FIELD, lopa_object, "an object"),
            expected="an object with options",
            remedy="send an object",
        )
    return lopa_object or {}


def _is_ids(prompts: object) -> bool:
    """Return True for a list of token ids, and for a list of such lists."""
    return isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], str)


def check_neutral(name: str, value: object, neutral: tuple[object, ...]) -> None:
    """Raise FieldError for a value of the field `name` that is neither null nor among `neutral`."""
    if not is_neutral(value, neutral):
        raise FieldError(
            name,
            f"{name} {shown(value)} is not supported",
            expected=f"{' or '.join(json.dumps(each) for each in (*neutral, None))}, or no such field",
            remedy=HINTS.get(name, "remove it"),
        )


def _unknown_field(name: str, known: Collection[str]) -> FieldError:
    """Return the error of a field that is not read, with the nearest name among `known` fields or options."""
    own = did_you_mean(name, form=f'"{LOPA_FIELD}": {{"NAME": ...}}', otherwise="remove it")
    near = "" if name in OPTIONS or strategy_with_option(name) else did_you_mean(name, known, otherwise="")
    return FieldError(
        name[:80],
        f"unknown field {name[:80]!r}",
        expected=f'a field of docs/reference/http.md, and decoding options in the object "{LOPA_FIELD}"',
        remedy=HINTS.get(name) or near or own,
    )


def _check_top_logprobs(options: BodyOptions) -> None:
    """Raise FieldError for OpenAI's field top_logprobs without logprobs, as OpenAI's API does."""
    field = "top_logprobs"
    if options.params.get(field) == field and options.values[field] and not options.values.get("logprobs"):
        raise FieldError(
            field,
            f"top_logprobs {shown(options.values[field])} without logprobs",
            expected="logprobs true with top_logprobs",
            remedy="set logprobs to true",
        )


def _logprobs_of_completion(value: Any) -> dict[str, Any]:
    """Return the options of a number of candidates. 0 requests the log-probabilities of the tokens alone."""
    number = check_int("logprobs", value, min=0, max=TOP_K)
    return {"logprobs": True, **({"top_logprobs": number} if number else {})}


_READERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    **{name: option_reader(option) for name, option in _OPTIONS.items()},
    "stop": lambda value: {"stop": [value] if isinstance(value, str) else value},
    **MAPPED,
    "response_format": option_from_response_format,
}
"""Functions from a field's value to options, by field."""
TYPED_FIELDS = {name: option for name, option in _OPTIONS.items() if name not in ("seed", "stop", "logprobs")}
"""Options by the fields that have their values in all bodies."""


LENGTH = "max_new_tokens"
"""lopa's name of the option that bounds an answer's length."""


def replace_words(text: str, names: Mapping[str, str]) -> str:
    """Return `text` with every word that is a key of `names` replaced by its value."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)
