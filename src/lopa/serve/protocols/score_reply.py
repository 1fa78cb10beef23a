"""Reply of /v1/score."""

from collections.abc import Sequence
from typing import Any

from lopa.serve.http.api_error import ApiError
from lopa.serve.openai.response_shapes import fields_of_scores
from lopa.serve.protocols.choice import Choice
from lopa.serve.protocols.reply_format import ReplyContext


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
