"""Requests of /v1/score and their replies: one prompt or chat, and the choices to score. This module does not depend on
the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import FieldError
from lopa.serve.http.api_error import ApiError
from lopa.serve.openai.body_options import CHATS, COMPLETIONS, LOPA_FIELD, PROMPT_FIELDS, SCORES, lopa_options_from_body
from lopa.serve.openai.request import AnswerRequest, request_from_body
from lopa.serve.openai.response_shapes import fields_of_scores
from lopa.serve.protocols.choice import Choice
from lopa.serve.protocols.reply_format import ReplyContext
from lopa.serve.serve_limits import ServeLimits

_CHOICES = "choices"


def score_request_from_body(
    body: Mapping[str, Any], limits: ServeLimits, defaults: Mapping[str, Any] = MappingProxyType({})
) -> AnswerRequest:
    """Return the request in `body`, within `limits`. `defaults` come from the bundle and the operator.

    It is a request for one answer with the option `choices`. Raises FieldError for an invalid field.
    """
    given = [endpoint for endpoint in (CHATS, COMPLETIONS) if body.get(PROMPT_FIELDS[endpoint]) is not None]
    if len(given) != 1:
        raise FieldError(
            PROMPT_FIELDS[COMPLETIONS],
            "prompt and messages" if given else "neither prompt nor messages",
            expected="one of the two",
            remedy="send a prompt, or the messages of a chat",
        )
    ours = lopa_options_from_body(body)
    if body.get(_CHOICES) is None or ours.get(_CHOICES) is not None:
        raise FieldError(
            _CHOICES,
            "choices in lopa" if ours.get(_CHOICES) is not None else "no choices",
            expected="choices at the top level of the body",
            remedy='e.g. "choices": ["yes", "no"]',
        )
    rest = {name: value for name, value in body.items() if name != _CHOICES}
    answered = {**rest, LOPA_FIELD: {**ours, _CHOICES: body[_CHOICES]}}
    requested = request_from_body(answered, given[0], limits, defaults)
    # The choices come first, since errors about two options that exclude each other name the last one.
    others = {name: param for name, param in requested.options.params.items() if name != _CHOICES}
    requested.options.params = {_CHOICES: _CHOICES, **others}
    for field, is_wrong in (
        ("prompt", len(requested.prompts) > 1),
        ("n", requested.copies > 1),
        ("stream", requested.stream is not None),
        ("echo", requested.echo),
    ):
        if is_wrong:
            raise FieldError(
                field,
                f"{field} {shown(body[field])}",
                expected="one prompt and one reply that is not streamed",
                remedy="send a request for each prompt" if field == "prompt" else f"remove {field}",
            )
    return replace(requested, endpoint=SCORES)


class ScoreReply:
    """Probabilities of the choices of one request, which is never streamed."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context

    @property
    def id(self) -> str:
        """ID of the reply. It is also the request ID in headers, unless the client sent one."""
        return f"score-{self._context.number}"

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the body of the reply. Raises ApiError 408 if the deadline passed before."""
        (result,) = (choice.result for choice in choices)
        if result.scores is None:
            received = "the time limit passed before all choices had scores"
            raise ApiError(408, received, "server_error", code="timeout")
        tokens = len(result.prompt_ids)
        usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
        return {
            "id": self.id,
            "object": "score",
            "created": self._context.created,
            "model": self._context.model,
            "system_fingerprint": self._context.fingerprint,
            **fields_of_scores(result.scores),
            "usage": {**usage, "lopa": {"steps": result.steps}},
        }
