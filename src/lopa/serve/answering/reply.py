"""What all parts of one reply have in common, and its whole form."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lopa.runtime.requests.result import GenerationResult
from lopa.serve.answering.service import Service
from lopa.serve.http.request_log import HEADER, named_request, number_of_request
from lopa.serve.openai.answer import (
    SHAPES,
    Shape,
    choice_of_result,
    finish_of_result,
    ours_of_result,
    usage_of_results,
)
from lopa.serve.openai.request import AskedRequest


@dataclass(frozen=True)
class Reply:
    """One answer to one body, with one choice or several."""

    service: Service
    asked: AskedRequest
    created: int = field(default_factory=lambda: int(time.time()))
    number: str = field(default_factory=number_of_request)

    @property
    def shape(self) -> Shape:
        """Of the endpoint."""
        return SHAPES[self.asked.endpoint]

    @property
    def id(self) -> str:
        """Id of the reply; also its request's id in headers, unless the client sent one."""
        return self.shape.id + self.number

    @property
    def headers(self) -> dict[str, str]:
        """By which a client names the request to whom it asks for help."""
        return {HEADER: named_request(self.id)}

    def head(self, kind: str) -> dict[str, Any]:
        """What the reply, or each part of a stream, begins with; `kind` is its object."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.service.name,
            "system_fingerprint": self.service.fingerprint,
        }

    def whole(self, results: Sequence[GenerationResult]) -> dict[str, Any]:
        """The reply that is not streamed."""
        text_of_ids = self.service.text_of_ids
        choices = [
            {**choice_of_result(self.shape, index, result, text_of_ids), "lopa": ours_of_result(result)}
            for index, result in enumerate(results)
        ]
        return {**self.head(self.shape.object), "choices": choices, "usage": self.usage(results)}

    def usage(self, results: Sequence[GenerationResult]) -> dict[str, Any]:
        """Tokens of all answers, and what they took."""
        steps = sum(result.steps for result in results)
        tokens = sum(result.tokens for result in results)
        ours = {
            "steps": steps,
            "window_tokens": sum(result.window_tokens for result in results),
            "tokens_per_forward": tokens / steps if steps else 0.0,
        }
        counted = usage_of_results(results, of_prompt=self.asked.copies)
        found = sum(result.reused_rows for result in results[:: self.asked.copies])
        return {**counted, "prompt_tokens_details": {"cached_tokens": found}, "lopa": ours}

    def count(self, result: GenerationResult) -> None:
        """For the metrics: an answer has ended."""
        self.service.metrics.answered(self.asked.endpoint, finish_of_result(result))
