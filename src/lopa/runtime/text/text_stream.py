"""The text of a growing sequence of token ids, piece by piece. Does not know where the ids come from."""

from collections.abc import Sequence

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Gives out only text that no later id can change, and ends at the first stop string.

    The first stop string is the one that is complete first; of several complete at the same character, the longest. It
    and everything behind it is not given out. How the ids are divided over `push` calls changes nothing.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        """Raises BadInputError for an empty stop string."""
        if "" in stop:
            raise BadInputError("an empty stop string", expected="at least one character", remedy="leave it out")
        self.stopped: str | None = None
        """The stop string that ended the text."""
        self.token_count = 0
        """Ids so far, up to and including the one that made the stop string certain."""
        self._tokenizer = tokenizer
        self._special = tokenizer.special_ids
        self._stop = tuple(stop)
        self._ids: list[int] = []
        """The window that is decoded: context, whose text is given out, and new ids. The context is there because the
        decoders of some tokenizers treat the first token in a special way. Special tokens have no text and stay out."""
        self._context = 0
        """How many ids of the window are context."""
        self._given_characters = 0
        """How many characters behind the context are given out too: those in front of an incomplete one."""
        self._held = ""
        """Certain text that may be the beginning of a stop string."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` made certain; "" after a stop string."""
        pieces = []
        for new in ids:
            if self.stopped is not None:
                break
            self.token_count += 1
            if new not in self._special:
                self._ids.append(new)
                pieces.append(self._without_stop(self._certain_text()))
        return "".join(pieces)

    def finish(self) -> str:
        """The rest of the text: no id will follow."""
        if self.stopped is not None:
            return ""
        rest = self._without_stop(self._new_text()[self._given_characters :])
        if self.stopped is None:
            rest += self._held
        self._ids.clear()
        self._context = self._given_characters = 0
        self._held = ""
        return rest

    def _new_text(self) -> str:
        """Text of the window behind the context."""
        context = self._tokenizer.decode(self._ids[: self._context])
        return self._tokenizer.decode(self._ids)[len(context) :]

    def _certain_text(self) -> str:
        """Text that has become certain. U+FFFD at the end is not: so a decoder writes a character still incomplete."""
        text = self._new_text()
        certain = text.rstrip(REPLACEMENT)
        new = certain[self._given_characters :]
        if certain and certain == text:
            del self._ids[: self._context]
            self._context = len(self._ids)
            self._given_characters = 0
        else:
            self._given_characters = len(certain)
        return new

    def _without_stop(self, new: str) -> str:
        """What may be given out of the held text and `new`; sets `stopped` when a stop string is complete."""
        text = self._held + new
        found = [(at + len(stop), -len(stop), stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            end, _, self.stopped = min(found)
            self._held = ""
            return text[: end - len(self.stopped)]
        self._held = text[len(text) - self._longest_beginning_at_end(text) :]
        return text[: len(text) - len(self._held)]

    def _longest_beginning_at_end(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stop)), 0)
