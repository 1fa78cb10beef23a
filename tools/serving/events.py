"""Events of a stream, and the answers that they add up to."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from lopa.serve.openai.options import OURS

_DATA = b"data: "
_DONE = b"[DONE]"


class BadStreamError(Exception):
    """A stream that breaks the protocol."""


@dataclass
class StreamedAnswers:
    """Everything received of each choice so far, by its index."""

    texts: dict[int, str] = field(default_factory=dict)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The choice of the last chunk of each."""
    drafts: int = 0
    whole: bool = False
    """Whether [DONE] has come."""
    id: str | None = None

    def add(self, data: bytes) -> None:
        """Add one event. Raises BadStreamError for one that cannot come here."""
        if self.whole:
            raise BadStreamError("an event behind [DONE]")
        if data == _DONE:
            self.whole = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise BadStreamError(f"an error: {chunk['error']}")
        if self.id is not None and chunk["id"] != self.id:
            raise BadStreamError("two ids in one stream")
        self.id = chunk["id"]
        for choice in chunk["choices"]:
            self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        index, ours = choice["index"], choice.get(OURS, {})
        if index in self.ends:
            raise BadStreamError("more of a choice that has ended")
        text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        self.texts[index] = self.texts.get(index, "") + text
        if "draft" in ours:
            self.drafts += 1
            if not ours["draft"].startswith(self.texts[index]):
                raise BadStreamError("a draft that does not begin with the text before it")
        if choice["finish_reason"] is not None:
            self.ends[index] = choice

    def choices(self) -> list[dict[str, Any]]:
        """Return the choices as an answer that is not streamed has them: "text", "finish_reason" and OURS."""
        return [{**self.ends[index], "text": self.texts[index]} for index in sorted(self.ends)]


async def events_of_parts(parts: AsyncIterator[bytes], *, pause: float = 0.0) -> AsyncIterator[bytes]:
    """Yield the data of each event, however the events were cut into parts; wait `pause` seconds after each part."""
    rest = b""
    async for part in parts:
        *events, rest = (rest + part).split(b"\n\n")
        for event in events:
            if event.startswith(_DATA):
                yield event.removeprefix(_DATA)
        await asyncio.sleep(pause)
    if rest:
        raise BadStreamError("half an event at the end")
