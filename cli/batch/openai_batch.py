"""Lines of OpenAI's batch files: what one asks for, in our words, and its answer in theirs. Knows no bundle.

Of the body's fields some are options of ours (_OPTIONS), some may only have the value that changes nothing (_ONLY),
some mean nothing here (_IGNORED); any other is an error of its line. Options of ours that theirs lack go into "lopa".
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lopa.cli.batch.asked_line import Asked, Messages, check_options, checked_ids, checked_messages, checked_text
from lopa.cli.batch.prompt_lines import RawLine
from lopa.cli.batch.result_lines import fields_of_result
from lopa.runtime.algorithm.decoding import StopReason
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.result import GenerationResult

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
_FINISH: dict[StopReason, str] = {"eos": "stop", "stop_string": "stop"}
"""Every other end is "length": the answer was cut."""
_ID = "batch_req_"
_REMEDY = "correct the line"
_TextOfIds = Callable[[list[int]], str]


@dataclass(frozen=True)
class _Endpoint:
    """One of the two kinds of answers."""

    prompt: str
    """The field of the body that is to be answered."""
    object: str
    id: str
    choice: Callable[[str], dict[str, Any]]
    logprobs: Callable[[list[str], list[Any]], dict[str, Any]]


_ENDPOINTS = {
    "/v1/chat/completions": _Endpoint(
        "messages",
        "chat.completion",
        "chatcmpl-",
        lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
        lambda tokens, values: {
            "content": [
                {"token": token, "logprob": value, "bytes": None, "top_logprobs": []}
                for token, value in zip(tokens, values, strict=True)
            ]
        },
    ),
    "/v1/completions": _Endpoint(
        "prompt",
        "text_completion",
        "cmpl-",
        lambda text: {"text": text},
        lambda tokens, values: {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": None},
    ),
}


def is_openai_line(value: Mapping[str, Any]) -> bool:
    """Whether an object of a file of prompts is meant to be of this shape."""
    return not _MARKS.isdisjoint(value)


def asked_of_openai_line(value: Mapping[str, Any]) -> Asked:
    """What a line of this shape asks for. Raises BadInputError for anything that would change the answer unheard."""
    endpoint, body = _endpoint_and_body(value)
    prompt = body.get(endpoint.prompt)
    options = _options_of_body(body, known=endpoint.prompt)
    if endpoint.prompt == "messages":
        return Asked(messages=_plain_messages(checked_messages(prompt)), options=options)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    checked = checked_ids(prompt) if isinstance(prompt, list) else checked_text(prompt)
    return Asked(prompt=checked, options=options, raw=True)


@dataclass(frozen=True)
class OpenAIAnswers:
    """How a line of this shape is answered, also one that cannot be used."""

    line: RawLine
    asked: Mapping[str, Any]
    """The line's object."""
    bundle: str
    """The name of the model where the line has none."""
    text_of_ids: _TextOfIds

    def of_result(self, result: GenerationResult) -> dict[str, Any]:
        """A response with status 200; what the result has beyond OpenAI's fields lies in "lopa"."""
        endpoint, body = _endpoint_and_body(self.asked)
        model = body.get("model")
        choice = {
            "index": 0,
            **endpoint.choice(result.text),
            "logprobs": self._logprobs(endpoint, result),
            "finish_reason": _FINISH.get(result.stop_reason, "length"),
        }
        ours = fields_of_result(result, prompt_ids=False)
        answer = {
            "id": endpoint.id + self._name,
            "object": endpoint.object,
            "created": int(time.time()),
            "model": model if isinstance(model, str) else self.bundle,
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(result.prompt_ids),
                "completion_tokens": result.tokens,
                "total_tokens": len(result.prompt_ids) + result.tokens,
            },
            "lopa": {name: each for name, each in ours.items() if name not in ("text", "token_ids", "logprobs")},
        }
        return self._line_of(200, answer, None)

    def of_error(self, error: BadInputError) -> dict[str, Any]:
        """A response with status 400, and the same as the line's error."""
        said = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
        return self._line_of(400, {"error": said}, {"code": "invalid_request_error", "message": str(error)})

    @property
    def _name(self) -> str:
        return f"{self.line.number}_{self.line.digest}"

    def _line_of(self, status: int, body: dict[str, Any], error: dict[str, Any] | None) -> dict[str, Any]:
        custom_id = self.asked.get("custom_id")
        return {
            "id": _ID + self._name,
            "custom_id": custom_id if isinstance(custom_id, str) else None,
            "response": {"status_code": status, "request_id": f"req_{self._name}", "body": body},
            "error": error,
        }

    def _logprobs(self, endpoint: _Endpoint, result: GenerationResult) -> dict[str, Any] | None:
        values = fields_of_result(result, prompt_ids=False).get("logprobs")
        if values is None:
            return None
        return endpoint.logprobs([self.text_of_ids([each]) for each in result.token_ids], values)


def identity_of_openai_answer(value: Mapping[str, Any]) -> tuple[int, str] | None:
    """The number and the digest of the line that an answer of this shape is for; None for anything else."""
    name = value.get("id")
    if not isinstance(name, str) or not name.startswith(_ID) or "custom_id" not in value:
        return None
    number, _, digest = name.removeprefix(_ID).partition("_")
    return (int(number), digest) if number.isascii() and number.isdigit() and len(number) < 19 else None


def _endpoint_and_body(value: Mapping[str, Any]) -> tuple[_Endpoint, Mapping[str, Any]]:
    url, body = value.get("url"), value.get("body")
    for name, wrong, expected in (
        ("custom_id", not isinstance(value.get("custom_id"), str), "a text by which the answer is found"),
        ("method", value.get("method", "POST") != "POST", '"POST"'),
        ("url", not isinstance(url, str) or url not in _ENDPOINTS, " or ".join(_ENDPOINTS)),
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
    return _ENDPOINTS[url], body


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
