"""Text of an answer, split into reasoning and the rest as it arrives."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lopa.runtime.chat.answer_grammar import Reasoning
from lopa.runtime.text.text_stream import partial_mark_length
from lopa.runtime.text.tokenizer import THINK

_TOKEN = "\ud800"


def marked_text(text: str, offsets: Sequence[int]) -> str:
    """Return `text` with a sign before every token that begins at one of the ascending `offsets`."""
    bounds = (0, *offsets, len(text))
    return _TOKEN.join(text[start:end] for start, end in pairwise(bounds))


def without_token_marks(text: str) -> str:
    """Return `text` without signs."""
    return text.replace(_TOKEN, "")


def token_mark(mark: str) -> str:
    """Return the marked text of the token `mark`; "" stays ""."""
    return mark and _TOKEN + mark


class Piece(NamedTuple):
    """A piece of an answer."""

    text: str
    is_reasoning: bool


class ReasoningParser:
    """Parser of one answer. White space around the reasoning is dropped, and so are its marks.

    Its input is marked text if marks are tokens. A tool call ends reasoning that has no end mark.
    """

    def __init__(
        self, reasoning: Reasoning, marks: tuple[str, str] = THINK, *, marks_are_tokens: bool, call_mark: str = ""
    ) -> None:
        """Begin an answer. `call_mark` is the mark that opens a call in the input, or ""."""
        self._opening, self._closing = (token_mark(mark) if marks_are_tokens else mark for mark in marks)
        self._call_mark = call_mark
        self._state = {"none": "answer", "possible": "begin", "open": "reasoning"}[reasoning]
        self._waiting = ""
        self._is_begun = False
        """True once the reasoning or the answer behind it has text."""

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain after `text`."""
        self._waiting += text
        pieces: list[Piece] = []
        if self._state == "begin":
            begin = self._waiting.lstrip()
            if begin.startswith(self._opening):
                self._state, self._waiting = "reasoning", begin[len(self._opening) :]
            elif self._opening.startswith(begin):
                return []
            else:
                self._state, self._is_begun = "answer", True
        if self._state == "reasoning":
            pieces += self._reasoning()
        if self._state == "answer":
            pieces += self._answer()
        return pieces

    def end(self) -> list[Piece]:
        """Return the remaining pieces at the end of the answer."""
        rest, self._waiting = self._waiting, ""
        if self._state == "reasoning":
            rest = self._without_opening(rest).rstrip()
        return [Piece(rest, self._state == "reasoning")] if rest else []

    def _reasoning(self) -> list[Piece]:
        self._waiting = self._without_opening(self._waiting)
        ends = [self._waiting.find(mark) for mark in (self._closing, self._call_mark) if mark and mark in self._waiting]
        if ends:
            found = min(ends)
            text, rest = self._waiting[:found].rstrip(), self._waiting[found:]
            self._state, self._is_begun = "answer", False
            self._waiting = rest.removeprefix(self._closing)
        else:
            marks = (self._closing, self._call_mark, "" if self._is_begun else self._opening)
            keep = partial_mark_length(self._waiting, marks)
            text = self._waiting[: len(self._waiting) - keep].rstrip()
            self._waiting = self._waiting[len(text) :]
        self._is_begun = self._is_begun or bool(text and not ends)
        return [Piece(text, is_reasoning=True)] if text else []

    def _without_opening(self, text: str) -> str:
        """Return the reasoning without white space and the mark at its beginning. Some models repeat the prompt's."""
        if self._is_begun:
            return text
        begin = text.lstrip()
        return begin.removeprefix(self._opening).lstrip()

    def _answer(self) -> list[Piece]:
        """Return the text behind the reasoning, without the line ends that separate them."""
        if not self._is_begun:
            self._waiting = self._waiting.lstrip("\n")
            self._is_begun = bool(self._waiting)
        text, self._waiting = self._waiting, ""
        return [Piece(text, is_reasoning=False)] if text else []
