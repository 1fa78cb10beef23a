"""Replies of OpenAI's /v1/responses."""

from collections.abc import Mapping, Sequence
from typing import Any

from lopa.serve.chat.answer_parser import Part, ReasoningText
from lopa.serve.chat.call_parser import ToolCall
from lopa.serve.http.api_error import ApiError
from lopa.serve.openai.response_shapes import lopa_fields_from_result
from lopa.serve.protocols.choice import Choice
from lopa.serve.protocols.reply_format import ReplyContext, encode_named_event, token_counts

_COMPLETED, _IN_PROGRESS = "completed", "in_progress"
_MESSAGE, _REASONING, _CALL = "message", "reasoning", "function_call"
_PREFIXES = {_MESSAGE: "msg", _REASONING: "rs", _CALL: "fc"}
"""Prefix of an item's id by its type."""


class ResponsesReply:
    """Reply to a request of /v1/responses, which has one choice."""

    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._sequence = 0
        """Number of the next event."""
        self._items: list[dict[str, Any]] = []
        """Items that are complete."""
        self._open: dict[str, Any] | None = None
        """Item of text or reasoning that is still written."""
        self._text = ""
        """Text of the open item so far."""

    @property
    def id(self) -> str:
        """Id of the response."""
        return f"resp_{self._context.number}"

    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the response."""
        (choice,) = choices
        items = [self._whole_item(number, part) for number, part in enumerate(choice.parts)]
        return self._response(items or [self._message(0, "")], choice)

    def begin(self, count: int, prompt_tokens: int) -> bytes:  # noqa: ARG002
        """Return the events response.created and response.in_progress."""
        response = self._response([], None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def part(self, index: int, part: Part) -> bytes:  # noqa: ARG002
        """Return the events of a part: a call is an item of its own, text continues an open item."""
        if isinstance(part, ToolCall):
            return self._end_item() + self._call_events(part)
        kind = _REASONING if isinstance(part, ReasoningText) else _MESSAGE
        text = part.text if isinstance(part, ReasoningText) else part
        before = b"" if self._open is not None and self._open["type"] == kind else self._begin_item(kind)
        self._text += text
        return before + self._text_event(kind, "delta", delta=text)

    def draft(self, index: int, fields: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        """Return an event of our own with the draft."""
        return self._event("response.lopa_draft", lopa=fields)

    def choice_ended(self, index: int, choice: Choice) -> bytes:  # noqa: ARG002
        """Return the end of the open item. An answer without any part has one message with an empty text."""
        empty = self._begin_item(_MESSAGE) if not self._items and self._open is None else b""
        return empty + self._end_item()

    def end(self, choices: Sequence[Choice]) -> bytes:
        """Return the event with the whole response."""
        (choice,) = choices
        response = self._response(self._items, choice)
        return self._event(f"response.{response['status']}", response=response)

    def error(self, error: ApiError) -> bytes:
        """Return the event response.failed."""
        given = error.body["error"]
        failure = {"code": given["code"] or "server_error", "message": given["message"]}
        response = {**self._response(self._items, None), "status": "failed", "error": failure}
        return self._event("response.failed", response=response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return encode_named_event(event)

    def _begin_item(self, kind: str) -> bytes:
        before = self._end_item()
        number = len(self._items)
        self._open, self._text = {"id": self._item_id(kind, number), "type": kind, "status": _IN_PROGRESS}, ""
        self._open |= {"role": "assistant", "content": []} if kind == _MESSAGE else {"summary": []}
        added = self._event("response.output_item.added", output_index=number, item=self._open)
        return before + added + self._part_event("added", _content(kind, ""))

    def _end_item(self) -> bytes:
        if self._open is None:
            return b""
        kind, number = self._open["type"], len(self._items)
        item = self._text_item(kind, number, self._text)
        events = self._text_event(kind, "done", text=self._text) + self._part_event("done", _content(kind, self._text))
        events += self._event("response.output_item.done", output_index=number, item=item)
        self._items.append(item)
        self._open = None
        return events

    def _call_events(self, call: ToolCall) -> bytes:
        number = len(self._items)
        item = self._call(number, call)
        events = self._event(
            "response.output_item.added",
            output_index=number,
            item={**item, "arguments": "", "status": _IN_PROGRESS},
        )
        where = {"item_id": item["id"], "output_index": number}
        events += self._event("response.function_call_arguments.delta", **where, delta=call.arguments)
        events += self._event(
            "response.function_call_arguments.done", **where, name=call.name, arguments=call.arguments
        )
        events += self._event("response.output_item.done", output_index=number, item=item)
        self._items.append(item)
        return events

    def _text_event(self, kind: str, event: str, **fields: str) -> bytes:
        assert self._open is not None
        name = "output_text" if kind == _MESSAGE else "reasoning_text"
        logprobs: dict[str, Any] = {"logprobs": []} if kind == _MESSAGE else {}
        where = {"item_id": self._open["id"], "output_index": len(self._items), "content_index": 0}
        return self._event(f"response.{name}.{event}", **where, **fields, **logprobs)

    def _part_event(self, event: str, part: dict[str, Any]) -> bytes:
        assert self._open is not None
        where = {"item_id": self._open["id"], "output_index": len(self._items), "content_index": 0}
        return self._event(f"response.content_part.{event}", **where, part=part)

    def _whole_item(self, number: int, part: Part) -> dict[str, Any]:
        if isinstance(part, ToolCall):
            return self._call(number, part)
        if isinstance(part, ReasoningText):
            return self._text_item(_REASONING, number, part.text)
        return self._message(number, part)

    def _message(self, number: int, text: str) -> dict[str, Any]:
        return self._text_item(_MESSAGE, number, text)

    def _text_item(self, kind: str, number: int, text: str) -> dict[str, Any]:
        own: dict[str, Any] = {"role": "assistant"} if kind == _MESSAGE else {"summary": []}
        content = [_content(kind, text)]
        return {"id": self._item_id(kind, number), "type": kind, "status": _COMPLETED, **own, "content": content}

    def _call(self, number: int, call: ToolCall) -> dict[str, Any]:
        return {
            "id": self._item_id(_CALL, number),
            "type": _CALL,
            "call_id": f"call_{self._context.call_id(0, number)}",
            "name": call.name,
            "arguments": call.arguments,
            "status": _COMPLETED,
        }

    def _item_id(self, kind: str, number: int) -> str:
        return f"{_PREFIXES[kind]}_{self._context.call_id(0, number)}"

    def _response(self, items: Sequence[Mapping[str, Any]], choice: Choice | None) -> dict[str, Any]:
        """Return the response with `items`; `choice` is None before the end."""
        body, options = self._context.requested.body, self._context.requested.options.values
        status, details = _IN_PROGRESS, None
        if choice is not None:
            is_cut = choice.finish_reason == "length"
            status = "incomplete" if is_cut else _COMPLETED
            details = {"reason": "max_output_tokens"} if is_cut else None
        own = {} if choice is None else {"lopa": lopa_fields_from_result(choice.result)}
        reasoning = body.get("reasoning") or {}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._context.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": details,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata") or {},
            "model": self._context.model,
            "output": list(items),
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "temperature": body.get("temperature", 0.0),
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p", 1.0),
            "max_output_tokens": options.get("max_new_tokens"),
            "previous_response_id": None,
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "store": False,
            "text": body.get("text") or {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": None if choice is None else _usage(choice),
            **own,
        }


def _content(kind: str, text: str) -> dict[str, Any]:
    if kind == _REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(choice: Choice) -> dict[str, Any]:
    prompts, cached, tokens, reasoning = token_counts([choice], 1)
    return {
        "input_tokens": prompts,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompts + tokens,
    }
