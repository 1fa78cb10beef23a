"""In which order bytes are tried when a text is to end soon: closing ones first. A matter of speed alone.

Knows no grammar; what is right is what a matcher allows.
"""

from collections.abc import Sequence

MANY = 40
"""So many bytes that may follow are those of some text; fewer are those of a form."""
_IN_TEXT = b"\"'\n a0A1./-_@:;,!|>)]}"
"""A string ends with its quote, a line with its end; then a few of every kind."""
_IN_FORM = b"}])>\"'0123456789,:;-nftabcdefghijklmopqrsuvwxyz"
"""What is open is closed before something else is opened; white space, opening brackets and the rest come last."""
_LATE = b"[{(< \t\r\n\\"


def _ranks(first: bytes, last: bytes) -> list[int]:
    ranks = [len(first)] * 256
    for rank, each in enumerate(first):
        ranks[each] = rank
    for rank, each in enumerate(last):
        ranks[each] = len(first) + 1 + rank
    return ranks


_TEXT_RANKS, _FORM_RANKS = _ranks(_IN_TEXT, b"\\"), _ranks(_IN_FORM, _LATE)


def ranked(allowed: Sequence[int]) -> bytes:
    """The bytes `allowed`, those first that probably end a text sooner."""
    ranks = _TEXT_RANKS if len(allowed) > MANY else _FORM_RANKS
    return bytes(sorted(allowed, key=ranks.__getitem__))


def fewer(allowed: Sequence[int]) -> list[bytes]:
    """All of those `allowed`, one by one, where they are few; of many those that tell of the others."""
    chosen = [each for each in allowed if each in _IN_TEXT] if len(allowed) > MANY else allowed
    return [bytes([each]) for each in chosen]
