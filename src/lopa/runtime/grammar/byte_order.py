"""Order of bytes to try when a text should end soon: closing bytes first. It only affects speed.

This module does not depend on a grammar, since matchers decide what is allowed.
"""

from functools import lru_cache

BYTES = 256
"""Size of the vocabulary of single bytes; the next ID is its end-of-text."""
SYMBOLS = bytes((*range(0xF5, 0xFF), 0xC0, 0xC1))
"""Bytes that never occur in UTF-8. In the byte vocabulary they stand for added tokens such as <tool_call>, which a
grammar names and no text spells."""
MAX_STRUCTURE_BYTES = 40
"""Number of allowed bytes above which the position counts as free text, below as structure."""
_MAX_CACHED_MASKS = 2**12
"""Maximum cached byte masks. Grammars have few different ones."""
_IN_TEXT = b"\"'\n a0A1./-_@:;,!|>)]}"
"""Order in free text: a string's quote, a line's end, then a few bytes of each kind."""
_IN_STRUCTURE = b"}])>,;:\"'0123456789-nftabcdefghijklmopqrsuvwxyz"
"""Order in structure: closing brackets, ends of numbers and words. White space, opening brackets and the rest come
last."""
_LATE = b"[{(< \t\r\n\\"


def _ranks(first: bytes, last: bytes) -> list[int]:
    ranks = [len(first)] * BYTES
    for rank, each in enumerate(first):
        ranks[each] = rank
    for rank, each in enumerate(last):
        ranks[each] = len(first) + 1 + rank
    return ranks


_REPRESENTATIVE = frozenset(_IN_TEXT + SYMBOLS)
_TEXT_RANKS, _STRUCTURE_RANKS = _ranks(_IN_TEXT, b"\\" + SYMBOLS), _ranks(_IN_STRUCTURE, _LATE)


@lru_cache(_MAX_CACHED_MASKS)
def rank_bytes(mask: bytes) -> bytes:
    """Return the bytes set in `mask` (lowest bit first). Bytes that probably end a text soonest come first."""
    allowed = [each for each in range(BYTES) if mask[each >> 3] >> (each & 7) & 1]
    ranks = _TEXT_RANKS if len(allowed) > MAX_STRUCTURE_BYTES else _STRUCTURE_RANKS
    return bytes(sorted(allowed, key=ranks.__getitem__))


@lru_cache(_MAX_CACHED_MASKS)
def representative_bytes(mask: bytes) -> bytes:
    """Return all bytes set in `mask` if they are few, otherwise representative bytes and every symbol."""
    allowed = rank_bytes(mask)
    return bytes(each for each in allowed if each in _REPRESENTATIVE) if len(allowed) > MAX_STRUCTURE_BYTES else allowed
