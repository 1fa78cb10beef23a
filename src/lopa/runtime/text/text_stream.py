"""Text of a growing sequence of token IDs, in pieces, and the marks in it, such as stop strings.

This module does not depend on the source of the IDs.
"""

from collections.abc import Iterable, Sequence

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Incremental decoder that returns only text that later IDs cannot change, and ends at the first stop string.

    The first stop string is the one completed first, and the longest of several completed at the same character. The
    stop string and the text after it are not returned. The split of IDs into `push` calls does not matter.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        """Store the tokenizer and the stop strings. Raises BadInputError for an empty stop string."""
        if "" in stop:
            raise BadInputError("an empty stop string", expected="at least one character", remedy="remove it")
        self.stopped: str | None = None
        """Stop string that ended the text."""
        self.token_count = 0
        """Number of IDs so far, up to the one that completed the stop string."""
        self.markup: list[int] = []
        """Offsets in the whole text at which the texts of added tokens begin, such as <tool_call>, ascending."""
        self._final_characters = 0
        """Number of characters that are final, including those that may begin a stop string."""
        self._tokenizer = tokenizer
        self._special = tokenizer.special_ids
        self._added_texts = tokenizer.added_texts
        self._stop = tuple(stop)
        self._ids: list[int] = []
        """IDs to decode: context, whose text was returned, and new IDs.

        Context is needed because some tokenizers treat the first token specially, or tokens next to each other. Special
        tokens have no text and are left out.
        """
        self._context = 0
        """Number of context IDs in the window."""
        self._returned_characters = 0
        """Number of characters after the context that were already returned, because only a later character is
        incomplete.
        """
        self._pending = ""
        """Final text that may be the beginning of a stop string."""

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` make final; "" after a stop string."""
        # IDs are decoded together where that gives the same text, with each mark at the same token.
        is_run = self._tokenizer.joins_bytes and self._added_texts.keys().isdisjoint(ids)
        if is_run and not (self._stop and self._completes_stop(ids)):
            return self._push_run(ids)
        return "".join(self._push_run((each,)) for each in ids)

    def _push_run(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` make final, where only the last one may be an added token or complete a mark."""
        if self.stopped is not None:
            return ""
        self.token_count += len(ids)
        new = [each for each in ids if each not in self._special]
        if not new:
            return ""
        self._ids += new
        text = self._final_text()
        self._final_characters += len(text)
        markup = self._added_texts.get(new[-1])
        if markup is not None and text.endswith(markup):
            self.markup.append(self._final_characters - len(markup))
        return self._without_stop(text)

    def _completes_stop(self, ids: Sequence[int]) -> bool:
        """Return True if a stop string may be complete behind `ids`."""
        text = self._pending + self._tokenizer.decode([*self._ids, *ids])[self._returned_characters :]
        return before_first_mark(text, self._stop)[1] is not None

    def finish(self) -> str:
        """Return the rest of the text when no ID follows."""
        if self.stopped is not None:
            return ""
        rest = self._without_stop(self._new_text()[self._returned_characters :])
        if self.stopped is None:
            rest += self._pending
        self._ids.clear()
        self._context = self._returned_characters = 0
        self._pending = ""
        return rest

    def _new_text(self) -> str:
        """Return the text of the window after the context."""
        context = self._tokenizer.decode(self._ids[: self._context]) if self._context else ""
        return self._tokenizer.decode(self._ids)[len(context) :]

    def _final_text(self) -> str:
        """Return newly final text. U+FFFD at the end is not final, since it may be an incomplete character."""
        text = self._new_text()
        final = text.rstrip(REPLACEMENT)
        new = final[self._returned_characters :]
        if final and final == text:
            del self._ids[: self._context]
            self._context = len(self._ids)
            if self._tokenizer.joins_bytes:
                self._ids, self._context = [], 0
            self._returned_characters = 0
        else:
            self._returned_characters = len(final)
        return new

    def _without_stop(self, new: str) -> str:
        """Return the final part of the pending text and `new`; set `stopped` if a stop string is complete."""
        text = self._pending + new
        before, self.stopped = before_first_mark(text, self._stop)
        if self.stopped is not None:
            self._pending = ""
            return before
        self._pending = text[len(text) - partial_mark_length(text, self._stop) :]
        return text[: len(text) - len(self._pending)]


def before_first_mark(text: str, marks: Iterable[str]) -> tuple[str, str | None]:
    """Return the text before the first of `marks` in `text`, and that mark; the whole text and None without one.

    The first mark is the one completed first, and the longest of several completed at the same character.
    """
    found = [(at + len(mark), -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    if not found:
        return text, None
    end, _, first = min(found)
    return text[: end - len(first)], first


def partial_mark_length(text: str, marks: Iterable[str]) -> int:
    """Return the length of the longest end of `text` that begins one of `marks` without completing it."""
    return max((_partial_length(text, mark) for mark in marks), default=0)


def _partial_length(text: str, mark: str) -> int:
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)
