"""Events of a stream, and their accumulated answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from lopa.serve.openai.body_options import LOPA_FIELD

_DATA = b"data: "
_DONE = b"[DONE]"


class BadStreamError(Exception):
    """A stream that violates the protocol."""


@dataclass
class StreamedAnswers:
    """Texts and ends of all choices received so far, by index."""

    texts: dict[int, str] = field(default_factory=dict)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Last chunk of each choice."""
    drafts: int = 0
    whole: bool = False
    """True after [DONE]."""
    id: str | None = None

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
        text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        self.texts[index] = self.texts.get(index, "") + text
        if "draft" in ours:
            self.drafts += 1
            if not ours["draft"].startswith(self.texts[index]):
                raise BadStreamError("a draft that does not begin with the previous text")
        if choice["finish_reason"] is not None:
            self.ends[index] = choice

    def choices(self) -> list[dict[str, Any]]:
        """Return the choices like a non-streamed answer: "text", "finish_reason" and LOPA_FIELD."""
        return [{**self.ends[index], "text": self.texts[index]} for index in sorted(self.ends)]


async def events_of_parts(parts: AsyncIterator[bytes], *, pause: float = 0.0) -> AsyncIterator[bytes]:
    """Yield the data of each event, however the parts split them. Wait `pause` seconds after each part."""
    rest = b""
    async for part in parts:
        *events, rest = (rest + part).split(b"\n\n")
        for event in events:
            if event.startswith(_DATA):
                yield event.removeprefix(_DATA)
        await asyncio.sleep(pause)
    if rest:
        raise BadStreamError("an incomplete event at the end")
