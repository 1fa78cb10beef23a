"""Events of a stream, and their accumulated answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from lopa.serve.openai.body_options import LOPA_FIELD, MESSAGES, RESPONSES
from tools.serving.replies import choice_with_parts, choices_of_reply

_DATA = b"data: "
_DONE = b"[DONE]"


class BadStreamError(Exception):
    """A stream that violates the protocol."""


class StreamedReply(Protocol):
    """Reply as received so far from a stream."""

    drafts: int
    whole: bool
    """True after the last event."""

    @property
    def id(self) -> str | None:
        """Id of the reply, or None before its first event."""

    def add(self, data: bytes) -> None:
        """Add one event. Raises BadStreamError for an invalid one."""

    def choices(self) -> list[dict[str, Any]]:
        """Return the complete choices in the form of `tools.serving.replies`."""

    def first_text(self) -> str:
        """Return the text of the first choice so far."""


def streamed_reply(path: str, *, checks_drafts: bool = True) -> StreamedReply:
    """Return an empty reply of the endpoint `path`. A draft of plain text, and no other, begins with the text."""
    if path == MESSAGES:
        return StreamedMessage()
    return StreamedResponse() if path == RESPONSES else StreamedAnswers(checks_drafts=checks_drafts)


@dataclass
class StreamedAnswers:
    """Parts and ends of all choices received so far, by index."""

    texts: dict[int, str] = field(default_factory=dict)
    reasoning: dict[int, str] = field(default_factory=dict)
    calls: dict[int, list[list[str]]] = field(default_factory=dict)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Last chunk of each choice."""
    drafts: int = 0
    whole: bool = False
    """True after [DONE]."""
    id: str | None = None
    checks_drafts: bool = True

    def add(self, data: bytes) -> None:
        """Add one event. Raises BadStreamError for an invalid one."""
        if self.whole:
            raise BadStreamError("an event after [DONE]")
        if data == _DONE:
            self.whole = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise BadStreamError(f"an error event: {chunk['error']}")
        if self.id is not None and chunk["id"] != self.id:
            raise BadStreamError("two ids in one stream")
        self.id = chunk["id"]
        for choice in chunk["choices"]:
            self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        index, ours = choice["index"], choice.get(LOPA_FIELD, {})
        if index in self.ends:
            raise BadStreamError("a chunk of a finished choice")
        delta = choice.get("delta", {})
        text = delta.get("content") or "" if "delta" in choice else choice["text"]
        self.texts[index] = self.texts.get(index, "") + text
        self.reasoning[index] = self.reasoning.get(index, "") + delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            calls = self.calls.setdefault(index, [])
            if call["index"] != len(calls):
                raise BadStreamError(f"call {call['index']} after {len(calls)} calls")
            calls.append([call["function"]["name"], call["function"]["arguments"]])
        if "draft" in ours:
            self.drafts += 1
            if self.checks_drafts and not ours["draft"].startswith(self.texts[index]):
                raise BadStreamError("a draft that does not begin with the previous text")
        if choice["finish_reason"] is not None:
            self.ends[index] = choice

    def choices(self) -> list[dict[str, Any]]:
        """Return the choices in the form of `tools.serving.replies`."""
        return [
            choice_with_parts(
                {name: self.ends[index][name] for name in ("index", "finish_reason", LOPA_FIELD)},
                self.texts[index],
                self.reasoning[index],
                self.calls.get(index, []),
            )
            for index in sorted(self.ends)
        ]

    def first_text(self) -> str:
        """Return the text of the first choice so far."""
        return self.texts.get(0, "")


@dataclass
class StreamedMessage:
    """Message of /v1/messages as received so far."""

    message: dict[str, Any] = field(default_factory=dict)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    drafts: int = 0
    whole: bool = False
    _open: bool = False

    @property
    def id(self) -> str | None:
        """Id of the message."""
        return self.message.get("id")

    def add(self, data: bytes) -> None:
        """Add one event. Raises BadStreamError for an invalid one."""
        event = json.loads(data)
        kind = event["type"]
        if self.whole or kind == "error" or (not self.message) != (kind == "message_start"):
            raise BadStreamError(f"an unexpected event: {event}")
        if kind == "message_start":
            self.message = event["message"]
        elif kind == "ping":
            self.drafts += LOPA_FIELD in event
        elif kind == "message_delta":
            self.message |= {**event["delta"], LOPA_FIELD: event[LOPA_FIELD]}
        elif kind == "message_stop":
            self.whole = True
        else:
            self._add_to_block(kind, event)

    def _add_to_block(self, kind: str, event: dict[str, Any]) -> None:
        opens = kind == "content_block_start"
        if opens == self._open or event["index"] != len(self.blocks) - (not opens):
            raise BadStreamError(f"{kind} of block {event['index']} after {len(self.blocks)} blocks")
        if opens:
            self.blocks.append({**event["content_block"], "json": ""})
        elif kind == "content_block_delta":
            block, delta = self.blocks[-1], event["delta"]
            for name, target in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                block[target] = block.get(target, "") + delta.get(name, "")
        elif self.blocks[-1]["type"] == "tool_use":
            self.blocks[-1]["input"] = json.loads(self.blocks[-1]["json"])
        self._open = kind != "content_block_stop"

    def choices(self) -> list[dict[str, Any]]:
        """Return the choice in the form of `tools.serving.replies`."""
        if self._open:
            raise BadStreamError("a block without end")
        return choices_of_reply(MESSAGES, {**self.message, "content": self.blocks})

    def first_text(self) -> str:
        """Return the text so far."""
        return "".join(each["text"] for each in self.blocks if each["type"] == "text")


@dataclass
class StreamedResponse:
    """Response of /v1/responses as received so far."""

    response: dict[str, Any] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)
    drafts: int = 0
    whole: bool = False
    _events: int = 0

    @property
    def id(self) -> str | None:
        """Id of the response."""
        return self.response.get("id")

    def add(self, data: bytes) -> None:
        """Add one event. Raises BadStreamError for an invalid one."""
        event = json.loads(data)
        kind = event["type"]
        if self.whole or kind in ("error", "response.failed") or event["sequence_number"] != self._events:
            raise BadStreamError(f"an unexpected event: {event}")
        self._events += 1
        if kind in ("response.created", "response.completed", "response.incomplete"):
            if self.id not in (None, event["response"]["id"]):
                raise BadStreamError("two ids in one stream")
            self.response, self.whole = event["response"], kind != "response.created"
        elif kind == "response.lopa_draft":
            self.drafts += 1
        elif kind == "response.output_item.added":
            self.items.append({**event["item"], "text": "", "arguments": ""})
        elif kind.endswith("_text.delta"):
            self._item(event)["text"] += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            self._item(event)["arguments"] += event["delta"]

    def _item(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["output_index"] != len(self.items) - 1:
            raise BadStreamError(f"an event of item {event['output_index']} of {len(self.items)} items")
        return self.items[-1]

    def choices(self) -> list[dict[str, Any]]:
        """Return the choice in the form of `tools.serving.replies`."""
        items = [{**each, "content": [{"text": each["text"]}]} for each in self.items]
        (last,) = choices_of_reply(RESPONSES, self.response)
        (found,) = choices_of_reply(RESPONSES, {**self.response, "output": items})
        if last != found:
            raise BadStreamError(f"the last event has {last}, and the events before it {found}")
        return [found]

    def first_text(self) -> str:
        """Return the text so far."""
        return "".join(each["text"] for each in self.items if each["type"] == "message")


async def events_of_parts(parts: AsyncIterator[bytes], *, pause: float = 0.0) -> AsyncIterator[bytes]:
    """Yield the data of each event, however the parts split them. Wait `pause` seconds after each part."""
    rest = b""
    async for part in parts:
        *events, rest = (rest + part).split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(_DATA):
                    yield line.removeprefix(_DATA)
        await asyncio.sleep(pause)
    if rest:
        raise BadStreamError("an incomplete event at the end")
