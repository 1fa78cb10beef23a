"""Parts of one answer as it arrives: reasoning, text and tool calls."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lopa.runtime.chat.prepared_chat import AnswerForm
from lopa.runtime.requests.result import TextEvent
from lopa.serve.chat.call_parser import CallParser, ToolCall
from lopa.serve.chat.reasoning_parser import Piece, ReasoningParser, marked_text, token_mark, without_token_marks


@dataclass(frozen=True)
class ReasoningText:
    """Text that the model wrote before its answer."""

    text: str


Part = str | ReasoningText | ToolCall
"""Part of an answer: text, reasoning or a call."""


class AnswerParser:
    """Parser of one answer. How the text is cut into events does not matter, except for where its parts are cut."""

    def __init__(self, form: AnswerForm) -> None:
        call_mark = "" if form.calls is None else form.calls.opening
        self._reasoning = ReasoningParser(
            form.reasoning,
            form.reasoning_marks,
            marks_are_tokens=form.reasoning_marks_are_tokens,
            call_mark=token_mark(call_mark) if form.call_marks_are_tokens else call_mark,
        )
        self._calls = (
            None
            if form.calls is None
            else CallParser(form.calls, form.names, marks_are_tokens=form.call_marks_are_tokens)
        )

    def feed(self, event: TextEvent) -> list[Part]:
        """Return the parts that are certain after `event`."""
        return self._parts(self._reasoning.feed(marked_text(event.text, event.markup)))

    def end(self) -> list[Part]:
        """Return the remaining parts at the end of the answer."""
        parts = self._parts(self._reasoning.end())
        return parts if self._calls is None else [*parts, *self._plain(self._calls.end())]

    def _parts(self, pieces: Iterable[Piece]) -> list[Part]:
        parts: list[Part] = []
        for piece in pieces:
            if piece.is_reasoning:
                parts.append(ReasoningText(without_token_marks(piece.text)))
            else:
                parts += self._plain([piece.text] if self._calls is None else self._calls.feed(piece.text))
        return parts

    def _plain(self, parts: Sequence[str | ToolCall]) -> list[Part]:
        return [without_token_marks(part) if isinstance(part, str) else part for part in parts]


def merged_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return `parts` with neighbours of the same kind joined."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, str) and isinstance(last, str):
            merged[-1] = last + part
        elif isinstance(part, ReasoningText) and isinstance(last, ReasoningText):
            merged[-1] = ReasoningText(last.text + part.text)
        else:
            merged.append(part)
    return tuple(merged)
