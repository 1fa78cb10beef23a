"""Text of holes while they are filled."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.state.branch import is_end
from lopa.runtime.text.encoded_holes import EncodedHoles, Span
from lopa.runtime.text.text_stream import REPLACEMENT, before_first_mark, partial_mark_length
from lopa.runtime.text.tokenizer import Tokenizer


class HoleText(NamedTuple):
    """Final text of a hole so far."""

    text: str
    is_whole: bool
    """True if no more text follows: the hole is filled, or a stop string ended it."""
    stop: str | None = None
    """Stop string that ended it."""
    has_end: bool = False
    """True if the model ended it by an end of text."""


@dataclass(frozen=True)
class FilledHoles:
    """The holes of a text, and how their tokens become text."""

    encoded: EncodedHoles
    ends: tuple[int, ...]
    """Tokens that end a hole; the tokens behind them are ignored."""

    @property
    def positions(self) -> Int64:
        """Positions of all holes, ascending."""
        return np.concatenate([np.arange(start, end) for start, end in self.encoded.holes])

    def texts(self, tokens: Int64, unmasked: Bool, tokenizer: Tokenizer, stop: tuple[str, ...]) -> tuple[HoleText, ...]:
        """Return the text of each hole that is begun, from left to right.

        `tokens` [length] are those of the whole text. Only tokens before the first masked position count.
        """
        found: list[HoleText] = []
        for hole in self.encoded.holes:
            text = self._text(hole, tokens, unmasked, tokenizer, stop)
            found.append(text)
            if not text.is_whole:
                break
        return tuple(found)

    def span_text(self, texts: tuple[HoleText, ...]) -> str:
        """Return the final text from the first hole on, with the given texts between holes."""
        pieces: list[str] = []
        for number, hole in enumerate(texts):
            pieces += [self.encoded.given[number] if number else "", hole.text]
        return "".join(pieces)

    def whole_text(self, texts: tuple[HoleText, ...]) -> str:
        """Return the given text with all holes filled."""
        given = self.encoded.given
        return given[0] + self.span_text(texts) + "".join(given[len(texts) :])

    def _text(self, hole: Span, tokens: Int64, unmasked: Bool, tokenizer: Tokenizer, stop: tuple[str, ...]) -> HoleText:
        start, end = hole
        masked = np.flatnonzero(~unmasked[start:end])
        filled = start + int(masked[0]) if len(masked) else end
        is_whole = filled == end
        boundaries = self.encoded.boundary_token_at
        before, after = boundaries.get(start), boundaries.get(end - 1)
        before = before if before is not None and before.is_start else None
        after = after if after is not None and not after.is_start else None
        first, last = start + (before is not None), end - (after is not None)
        own = tokens[first : max(first, min(filled, last))]
        ended = np.flatnonzero(is_end(own, self.ends))
        own = own[: int(ended[0])] if len(ended) else own
        edges = tokens[start : min(first, filled)], tokens[last : max(last, filled)]
        written = np.concatenate([edges[0], own, edges[1]]).tolist()
        text = tokenizer.decode(written) if written else ""
        text = text if is_whole else text.rstrip(REPLACEMENT)
        text = text[len(before.text) :] if before is not None else text
        text = text[: len(text) - len(after.text)] if after is not None and is_whole else text
        return _stopped(text, stop, is_whole=is_whole)._replace(has_end=bool(len(ended)))


def _stopped(text: str, stop: tuple[str, ...], *, is_whole: bool) -> HoleText:
    """Return `text` cut at the stop string that is complete first, without the beginning of one at its end."""
    before, found = before_first_mark(text, stop)
    if found is not None or is_whole:
        return HoleText(before, is_whole=True, stop=found)
    return HoleText(text[: len(text) - partial_mark_length(text, stop)], is_whole=False)
