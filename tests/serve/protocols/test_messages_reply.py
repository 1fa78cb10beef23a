"""Anthropic's replies of choices that are made by hand."""

import msgspec

from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.requests.result import GenerationResult
from lopa.serve.chat.call_parser import ToolCall
from lopa.serve.openai.body_options import BodyOptions
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.protocols.choice import Choice
from lopa.serve.protocols.messages_reply import MessagesReply
from lopa.serve.protocols.reply_format import ReplyContext

RESULT = GenerationResult((1,), (2,), "text", 1, 1, 1, 1.0, "eos", 0.5, resolve(GenerationConfig()))


def test_the_input_of_a_call_is_the_json_that_the_model_wrote() -> None:
    requested = AnswerRequest("/v1/messages", "tiny", (), BodyOptions(), 1, None, None, None, "messages", {})
    reply = MessagesReply(ReplyContext(requested, "0" * 32, 0, "tiny", "", lambda _: ""))
    arguments = '{"a": 9.017e62190, "b": [1234567890123456789012345678901234567890]}'
    body = msgspec.json.encode(reply.body([Choice(RESULT, (ToolCall("add", arguments),), 0)]))
    assert f'"input":{arguments}'.encode() in body
    msgspec.json.decode(body, type=dict[str, msgspec.Raw])  # the whole is JSON
