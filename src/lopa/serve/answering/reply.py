"""One reply to a request: fields that all its stream parts share, and its non-streamed form."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lopa.runtime.requests.result import GenerationResult
from lopa.serve.answering.service import Service
from lopa.serve.http.request_log import HEADER, request_number, set_request_id
from lopa.serve.openai.request import CompletionRequest
from lopa.serve.openai.response_shapes import (
    SHAPES,
    Shape,
    choice_from_result,
    finish_reason_from_result,
    lopa_fields_from_result,
    usage_from_results,
)


@dataclass(frozen=True)
class Reply:
    """Reply to one request body, with one or more choices."""

    service: Service
    requested: CompletionRequest
    created: int = field(default_factory=lambda: int(time.time()))
    number: str = field(default_factory=request_number)

    @property
    def shape(self) -> Shape:
        """Response format of the request's endpoint."""
        return SHAPES[self.requested.endpoint]

    @property
    def id(self) -> str:
        """ID of the reply. It is also the request ID in headers, unless the client sent one."""
        return self.shape.id + self.number

    @property
    def headers(self) -> dict[str, str]:
        """Response headers with the request ID, which clients quote in support requests."""
        return {HEADER: set_request_id(self.id)}

    def head(self, kind: str) -> dict[str, Any]:
        """Return the fields that begin the reply or a stream part; `kind` is its `object`."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.service.name,
            "system_fingerprint": self.service.fingerprint,
        }

    def body(self, results: Sequence[GenerationResult]) -> dict[str, Any]:
        """Return the body of the non-streamed reply."""
        decode_ids = self.service.decode_ids
        choices = [
            {**choice_from_result(self.shape, index, result, decode_ids), "lopa": lopa_fields_from_result(result)}
            for index, result in enumerate(results)
        ]
        return {**self.head(self.shape.object), "choices": choices, "usage": self.usage(results)}

    def usage(self, results: Sequence[GenerationResult]) -> dict[str, Any]:
        """Return the usage object: tokens of all choices, steps and tokens per forward."""
        steps = sum(result.steps for result in results)
        tokens = sum(result.tokens for result in results)
        lopa_fields = {
            "steps": steps,
            "window_tokens": sum(result.window_tokens for result in results),
            "tokens_per_forward": tokens / steps if steps else 0.0,
        }
        counted = usage_from_results(results, of_prompt=self.requested.copies)
        found = sum(result.reused_rows for result in results[:: self.requested.copies])
        return {**counted, "prompt_tokens_details": {"cached_tokens": found}, "lopa": lopa_fields}

    def count(self, result: GenerationResult) -> None:
        """Count one complete choice in the metrics."""
        self.service.metrics.answered(self.requested.endpoint, finish_reason_from_result(result))
