"""One reply to a request, in the form of its protocol."""

import time

from lopa.serve.answering.service import Service
from lopa.serve.http.request_log import HEADER, request_number, set_request_id
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.protocols.choice import Choice
from lopa.serve.protocols.endpoints import ENDPOINTS
from lopa.serve.protocols.reply_format import ReplyContext
from lopa.serve.tracing.request_trace import trace_finish


class Reply:
    """Reply to one request body, with one or more choices."""

    def __init__(self, service: Service, requested: AnswerRequest) -> None:
        self.service, self.requested = service, requested
        context = ReplyContext(
            requested, request_number(), int(time.time()), service.name, service.fingerprint, service.decode_ids
        )
        self.format = ENDPOINTS[requested.endpoint].reply(context)

    @property
    def headers(self) -> dict[str, str]:
        """Response headers with the request ID, which clients quote in support requests."""
        return {HEADER: set_request_id(self.format.id)}

    def count(self, choice: Choice) -> None:
        """Count one complete choice in the metrics and the trace."""
        self.service.metrics.answered(self.requested.endpoint, choice.finish_reason)
        trace_finish(choice.result, choice.finish_reason, reasoning_tokens=choice.reasoning_tokens)
