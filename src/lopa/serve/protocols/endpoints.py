"""The endpoints that answer, by path. The server and files of prompts read and write their bodies by this table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lopa.serve.openai.body_options import CHATS, COMPLETIONS, MESSAGES, RESPONSES, SCORES
from lopa.serve.openai.request import AnswerRequest, request_from_body
from lopa.serve.protocols.messages_reply import MessagesReply
from lopa.serve.protocols.messages_request import request_from_messages
from lopa.serve.protocols.openai_reply import OpenAIReply
from lopa.serve.protocols.reply_format import ReplyContext, ReplyFormat
from lopa.serve.protocols.responses_reply import ResponsesReply
from lopa.serve.protocols.responses_request import request_from_responses
from lopa.serve.protocols.scores import ScoreReply, score_request_from_body
from lopa.serve.serve_limits import ServeLimits

_Body = Mapping[str, Any]


@dataclass(frozen=True)
class Endpoint:
    """Request and reply of one path."""

    request: Callable[[_Body, ServeLimits, Mapping[str, Any]], AnswerRequest]
    """Function from a body, the limits of requests and the default options. Raises FieldError."""
    reply: Callable[[ReplyContext], ReplyFormat]


ENDPOINTS: Mapping[str, Endpoint] = {
    CHATS: Endpoint(lambda body, *rest: request_from_body(body, CHATS, *rest), OpenAIReply),
    COMPLETIONS: Endpoint(lambda body, *rest: request_from_body(body, COMPLETIONS, *rest), OpenAIReply),
    MESSAGES: Endpoint(request_from_messages, MessagesReply),
    RESPONSES: Endpoint(request_from_responses, ResponsesReply),
    SCORES: Endpoint(score_request_from_body, ScoreReply),
}
