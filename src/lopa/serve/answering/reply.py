"""One reply to a request, in the form of its protocol."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from lopa.serve.answering.service import Service
from lopa.serve.http.request_log import HEADER, request_number, set_request_id
from lopa.serve.openai.body_options import CHATS, COMPLETIONS, MESSAGES, RESPONSES
from lopa.serve.protocols.answer_request import AnswerRequest
from lopa.serve.protocols.choice import Choice
from lopa.serve.protocols.messages_reply import MessagesReply
from lopa.serve.protocols.openai_reply import OpenAIReply
from lopa.serve.protocols.reply_format import ReplyContext, ReplyFormat
from lopa.serve.protocols.responses_reply import ResponsesReply
from lopa.serve.tracing.request_trace import trace_finish

_FORMATS: Mapping[str, Callable[[ReplyContext], ReplyFormat]] = MappingProxyType(
    {CHATS: OpenAIReply, COMPLETIONS: OpenAIReply, MESSAGES: MessagesReply, RESPONSES: ResponsesReply}
)
"""Form of the reply by endpoint."""


class Reply:
    """Reply to one request body, with one or more choices."""

    def __init__(self, service: Service, requested: AnswerRequest) -> None:
        self.service, self.requested = service, requested
        context = ReplyContext(
            requested, request_number(), int(time.time()), service.name, service.fingerprint, service.decode_ids
        )
        self.format = _FORMATS[requested.endpoint](context)

    @property
    def headers(self) -> dict[str, str]:
        """Response headers with the request ID, which clients quote in support requests."""
        return {HEADER: set_request_id(self.format.id)}

    def count(self, choice: Choice) -> None:
        """Count one complete choice in the metrics and the trace."""
        self.service.metrics.answered(self.requested.endpoint, choice.finish_reason)
        trace_finish(choice.result, choice.finish_reason, reasoning_tokens=choice.reasoning_tokens)
