"""Text in which the marks that are tokens differ from the same characters written by other tokens.

A model may copy `<tool_call>` from a message. If the tokenizer has a token for it, only that token opens a call. Marked
text has a lone surrogate, which no decoded text contains, before every such token.
"""

from collections.abc import Sequence
from itertools import pairwise

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
