"""Replies of Anthropic's /v1/messages."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lopa.serve.chat.answer_parser import Part, ReasoningText
from lopa.serve.chat.call_parser import ToolCall
from lopa.serve.http.api_error import ApiError
from lopa.serve.openai.response_shapes import lopa_fields_from_result
from lopa.serve.protocols.choice import Choice
from lopa.serve.protocols.reply_format import ReplyContext, encode_named_event, token_counts

UNSIGNED = "unsigned"
"""Signature of thinking. Clients require one and send it back; nothing here checks it."""
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's types of errors by status; api_error for any other."""


class MessagesReply:
    """Reply to a request of /v1/messages, which has one choice."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._open: str | None = None
        """Type of the block that is open."""
        self._blocks = 0
        """Number of blocks so far."""
        self._calls = 0

    @property
    def id(self) -> str:
        """Id of the message."""
        return f"msg_{self._context.number}"

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the message."""
        (choice,) = choices
        blocks = [self._whole_block(part) for part in choice.parts] or [_block("text")]
        return {
            **self._head(blocks),
            **_stop(choice),
            "usage": self._usage(choices),
            "lopa": lopa_fields_from_result(choice.result),
        }

    def begin(self, count: int, prompt_tokens: int) -> bytes:  # noqa: ARG002
        """Return the event message_start."""
        usage = _usage(prompt_tokens, 0, 0)
        message = {**self._head([]), "stop_reason": None, "stop_sequence": None, "usage": usage}
        return encode_named_event({"type": "message_start", "message": message})

    def part(self, index: int, part: Part) -> bytes:  # noqa: ARG002
        """Return the events of a part: a call is a block of its own, text continues an open block."""
        if isinstance(part, ToolCall):
            block = self._call_block(part)
            delta = {"type": "input_json_delta", "partial_json": part.arguments}
            return self._start("tool_use", {**block, "input": {}}) + self._delta(delta) + self._stop_block()
        if isinstance(part, ReasoningText):
            return self._start("thinking") + self._delta({"type": "thinking_delta", "thinking": part.text})
        return self._start("text") + self._delta({"type": "text_delta", "text": part})

    def draft(self, index: int, fields: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        """Return a ping with the draft, which clients of Anthropic ignore."""
        return encode_named_event({"type": "ping", "lopa": fields})

    def choice_ended(self, index: int, choice: Choice) -> bytes:  # noqa: ARG002
        """Return the end of the open block. An answer without any part has one block with an empty text."""
        return (self._start("text") if not self._blocks else b"") + self._stop_block()

    def end(self, choices: Sequence[Choice]) -> bytes:
        """Return the events message_delta and message_stop."""
        (choice,) = choices
        delta = {
            "type": "message_delta",
            "delta": _stop(choice),
            "usage": self._usage(choices),
            "lopa": lopa_fields_from_result(choice.result),
        }
        return encode_named_event(delta) + encode_named_event({"type": "message_stop"})

    def error(self, error: ApiError) -> bytes:
        """Return the event of an error."""
        return encode_named_event(anthropic_error(error, self.id))

    def _head(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._context.model,
            "content": content,
        }

    def _usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        prompts, cached, tokens, _ = token_counts(choices, 1)
        return _usage(prompts, cached, tokens)

    def _start(self, kind: str, block: dict[str, Any] | None = None) -> bytes:
        """Return the event that opens a block of type `kind`, unless it continues an open one."""
        if self._open == kind != "tool_use":
            return b""
        before = self._stop_block()
        self._open, self._blocks = kind, self._blocks + 1
        event = {"type": "content_block_start", "index": self._blocks - 1, "content_block": block or _block(kind)}
        return before + encode_named_event(event)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return encode_named_event({"type": "content_block_delta", "index": self._blocks - 1, "delta": delta})

    def _stop_block(self) -> bytes:
        if self._open is None:
            return b""
        signature = self._delta({"type": "signature_delta", "signature": UNSIGNED}) if self._open == "thinking" else b""
        self._open = None
        return signature + encode_named_event({"type": "content_block_stop", "index": self._blocks - 1})

    def _whole_block(self, part: Part) -> dict[str, Any]:
        if isinstance(part, ToolCall):
            return self._call_block(part)
        if isinstance(part, ReasoningText):
            return {**_block("thinking"), "thinking": part.text, "signature": UNSIGNED}
        return {**_block("text"), "text": part}

    def _call_block(self, call: ToolCall) -> dict[str, Any]:
        self._calls += 1
        return {
            "type": "tool_use",
            "id": f"toolu_{self._context.call_id(0, self._calls - 1)}",
            "name": call.name,
            "input": msgspec.Raw(call.arguments.encode()),
        }


def anthropic_error(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return an error in Anthropic's form. The field that is wrong is part of the message.

    Anthropic's clients read the code of some errors in `details`.
    """
    given = error.body["error"]
    message = given["message"] if given["param"] is None else f"{given['param']}: {given['message']}"
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = {} if given["code"] is None else {"details": {"error_code": given["code"]}}
    return {"type": "error", "error": {"type": kind, "message": message, **details}, "request_id": request_id}


def _stop(choice: Choice) -> dict[str, Any]:
    stopped = choice.result.stop_string
    if stopped is not None and not choice.calls:
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
    return {"stop_reason": _STOP_REASONS[choice.finish_reason], "stop_sequence": None}


def _block(kind: str) -> dict[str, Any]:
    if kind == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": "", "citations": None}


def _usage(prompt_tokens: int, cached: int, tokens: int) -> dict[str, int]:
    return {
        "input_tokens": prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": tokens,
    }
