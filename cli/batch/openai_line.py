"""What a line of OpenAI's batch files asks for, in our words; it is answered as openai_answer says. Knows no bundle.

Of the body's fields some are options of ours (_OPTIONS), some may only have the value that changes nothing (_ONLY),
some mean nothing here (_IGNORED); any other is an error of its line. Options of ours that theirs lack go into "lopa".
"""

from collections.abc import Callable, Mapping
from typing import Any

from lopa.cli.batch.asked_line import Asked, Messages, check_options, checked_ids, checked_messages, checked_text
from lopa.runtime.errors import BadInputError

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
"""The endpoints that are known."""
_PROMPT_FIELDS = {CHATS: "messages", COMPLETIONS: "prompt"}
"""What of the body is to be answered, by endpoint."""
_MARKS = frozenset(("custom_id", "url", "body"))
"""A line with one of these is of this shape."""
_LINE = frozenset(("custom_id", "method", "url", "body"))
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
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "suffix": ("",),
}
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
    )
)
_REMEDY = "correct the line"


def is_openai_line(value: Mapping[str, Any]) -> bool:
    """Whether an object of a file of prompts is meant to be of this shape."""
    return not _MARKS.isdisjoint(value)


def asked_of_openai_line(value: Mapping[str, Any]) -> Asked:
    """What a line of this shape asks for. Raises BadInputError for anything that would change the answer unheard."""
    endpoint, body = endpoint_and_body(value)
    field = _PROMPT_FIELDS[endpoint]
    prompt = body.get(field)
    options = _options_of_body(body, known=field)
    if endpoint == CHATS:
        return Asked(messages=_plain_messages(checked_messages(prompt)), options=options)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    checked = checked_ids(prompt) if isinstance(prompt, list) else checked_text(prompt)
    return Asked(prompt=checked, options=options, raw=True)


def endpoint_and_body(value: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """CHATS or COMPLETIONS, and what is asked of it. Raises BadInputError for a line of another form."""
    url, body = value.get("url"), value.get("body")
    for name, wrong, expected in (
        ("custom_id", not isinstance(value.get("custom_id"), str), "a text by which the answer is found"),
        ("method", value.get("method", "POST") != "POST", '"POST"'),
        ("url", not isinstance(url, str) or url not in _PROMPT_FIELDS, " or ".join(_PROMPT_FIELDS)),
        ("body", not isinstance(body, dict), "an object with the request"),
    ):
        if wrong:
            raise BadInputError(f"{name} {str(value.get(name))[:80]}", expected=expected, remedy=_REMEDY)
    if unknown := sorted(set(value) - _LINE):
        raise BadInputError(
            f"unknown {', '.join(unknown)[:80]!r}", expected=", ".join(sorted(_LINE)), remedy="correct or remove it"
        )
    assert isinstance(url, str)
    assert isinstance(body, dict)
    return url, body


def _options_of_body(body: Mapping[str, Any], *, known: str) -> dict[str, Any]:
    """Options by our names; null is what was not given."""
    options: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in _IGNORED or name in (known, "lopa"):
            continue
        if name in _ONLY:
            _check_only(name, value)
        elif name in _OPTIONS:
            _put(options, _OPTIONS[name], _READ.get((known, name), _READ.get(("", name), _as_it_is))(value))
        else:
            raise BadInputError(
                f"{name[:80]!r} in the body",
                expected=", ".join((known, *_OPTIONS, "lopa")),
                remedy="remove it: it cannot be done, or is not known, here",
            )
    ours = body.get("lopa")
    if ours is not None:
        if not isinstance(ours, dict):
            raise BadInputError(f"lopa {str(ours)[:80]}", expected="an object with options", remedy=_REMEDY)
        check_options(ours)
        for name, value in ours.items():
            _put(options, name, value)
    return options


def _check_only(name: str, value: object) -> None:
    harmless = _ONLY[name]
    if not any(type(value) is type(each) or isinstance(value, float) for each in harmless) or value not in harmless:
        raise BadInputError(
            f"{name} {str(value)[:80]}",
            expected=f"{' or '.join(map(repr, harmless))}, or nothing: more is not done here",
            remedy="remove it, or ask for each answer in a line of its own" if name == "n" else "remove it",
        )


def _put(options: dict[str, Any], name: str, value: Any) -> None:
    if options.setdefault(name, value) != value:
        raise BadInputError(
            f"{name} is asked for twice: {str(options[name])[:40]} and {str(value)[:40]}",
            expected="one value",
            remedy="leave one of them out",
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


def _plain_messages(messages: Messages) -> Messages:
    """Messages whose content may come in parts of text, without fields that are null."""
    return [
        {
            name: _text_of_parts(value) if name == "content" else value
            for name, value in each.items()
            if value is not None
        }
        for each in messages
    ]


def _text_of_parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadInputError(
                f"a part of a message {str(part)[:80]}",
                expected='{"type": "text", "text": text}: the model reads text only',
                remedy="remove the part",
            )
    return "".join(part["text"] for part in content)
