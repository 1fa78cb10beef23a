"""Check the table of a `Precompiled` normalizer, which the tokenizers library reads without looking.

SentencePiece stores its normalization as a length, a trie in the form of Darts and a pool of texts. The library
allocates what the length promises and follows the trie's offsets. Here all that can be reached is followed once.
"""

import numpy as np
import numpy.typing as npt

MAX_CHARSMAP = 2**21
"""Bytes. The tables that SentencePiece comes with have up to half a million."""
_HEADER = 4
_LABELS = np.arange(1, 256, dtype=np.int64)
_NODES_AT_ONCE = 2048
_VALUE, _LEAF, _LABEL = 0x7FFFFFFF, 1 << 8, (1 << 31) | 0xFF


class CharsmapError(ValueError):
    """A table whose parts do not fit together."""


def growth_of_charsmap(data: bytes) -> int:
    """Return how many bytes of text the table makes of one byte at most.

    Raises CharsmapError for a table that is cut off, that leads outside itself, or that is not UTF-8.
    """
    if len(data) > MAX_CHARSMAP:
        raise CharsmapError(f"{len(data)} bytes, more than {MAX_CHARSMAP}")
    size = int.from_bytes(data[:_HEADER], "little")
    if len(data) < _HEADER or size % 4 or not 4 <= size <= len(data) - _HEADER:
        raise CharsmapError(f"its header promises {size} bytes of {max(len(data) - _HEADER, 0)}")
    pool = data[_HEADER + size :]
    try:
        pool.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CharsmapError(f"its texts are not UTF-8: {error}") from error
    return _growth(np.frombuffer(data, "<u4", size // 4, _HEADER).astype(np.int64), np.frombuffer(pool, np.uint8))


def _growth(units: npt.NDArray[np.int64], pool: npt.NDArray[np.uint8]) -> int:
    """Follow the trie of `units` in the order of its depth: a unit that is met again has been met by a shorter key."""
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    seen = np.zeros(len(units), np.bool_)
    ends = np.append(np.flatnonzero(pool == 0), len(pool))
    places, depth, growth = np.array([offsets[0]]), 0, 1
    while len(places):
        depth += 1
        found = np.concatenate(
            [
                _children(units, seen, places[start : start + _NODES_AT_ONCE])
                for start in range(0, len(places), _NODES_AT_ONCE)
            ]
        )
        places = found ^ offsets[found]
        starts = units[_inside(units, places[(units[found] & _LEAF) != 0])] & _VALUE
        if len(starts):
            if starts.max() >= len(pool) or ((pool[starts] & 0xC0) == 0x80).any():
                raise CharsmapError("it names a text outside its texts")
            longest = int((ends[np.searchsorted(ends, starts)] - starts).max())
            growth = max(growth, -(-longest // depth))
    return growth


def _children(
    units: npt.NDArray[np.int64], seen: npt.NDArray[np.bool_], places: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The units behind `places` that are met for the first time, marked as `seen`."""
    every = _inside(units, places[:, None] ^ _LABELS)
    found: npt.NDArray[np.int64] = np.unique(every[(units[every] & _LABEL) == _LABELS])
    found = found[~seen[found]]
    seen[found] = True
    return found


def _inside(units: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if places.size and places.max() >= len(units):
        raise CharsmapError("it leads outside its trie")
    return places
