"""In which order bytes are tried when a text is to end soon: closing ones first. A matter of speed alone.

Knows no grammar; what is right is what a matcher allows.
"""

from functools import lru_cache

BYTES = 256
"""Of the vocabulary of single bytes; the next id is its end-of-text."""
SYMBOLS = bytes((*range(0xF5, 0xFF), 0xC0, 0xC1))
"""Bytes that no UTF-8 has. In the vocabulary of bytes they stand for added tokens such as <tool_call>, which a grammar
names and no text spells."""
MANY = 40
"""So many bytes that may follow are those of some text; fewer are those of a form."""
_MASKS = 2**12
"""Masks of bytes that are remembered; grammars have few."""
_IN_TEXT = b"\"'\n a0A1./-_@:;,!|>)]}"
"""A string ends with its quote, a line with its end; then a few of every kind."""
_IN_FORM = b"}])>,;:\"'0123456789-nftabcdefghijklmopqrsuvwxyz"
"""What is open is closed, and a number or a word ended, before something else is opened; white space, opening brackets
and the rest come last."""
_LATE = b"[{(< \t\r\n\\"


def _ranks(first: bytes, last: bytes) -> list[int]:
    ranks = [len(first)] * BYTES
    for rank, each in enumerate(first):
        ranks[each] = rank
    for rank, each in enumerate(last):
        ranks[each] = len(first) + 1 + rank
    return ranks


_TELLING = frozenset(_IN_TEXT + SYMBOLS)
_TEXT_RANKS, _FORM_RANKS = _ranks(_IN_TEXT, b"\\" + SYMBOLS), _ranks(_IN_FORM, _LATE)


@lru_cache(_MASKS)
def ranked(mask: bytes) -> bytes:
    """The bytes that are set in `mask` (bits, the lowest first), those first that probably end a text sooner."""
    allowed = [each for each in range(BYTES) if mask[each >> 3] >> (each & 7) & 1]
    ranks = _TEXT_RANKS if len(allowed) > MANY else _FORM_RANKS
    return bytes(sorted(allowed, key=ranks.__getitem__))


@lru_cache(_MASKS)
def fewer(mask: bytes) -> bytes:
    """All bytes that are set in `mask` where they are few; of many those that tell of the others, and every symbol."""
    allowed = ranked(mask)
    return bytes(each for each in allowed if each in _TELLING) if len(allowed) > MANY else allowed
