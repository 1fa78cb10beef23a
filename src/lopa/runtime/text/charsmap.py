"""Check of the table of a `Precompiled` normalizer, which the tokenizers library reads unchecked.

SentencePiece stores its normalization as a length, a trie in Darts format and a pool of texts. The library allocates
the given length and follows the trie's offsets. This module first visits every reachable node once.
"""

import numpy as np
import numpy.typing as npt

MAX_CHARSMAP = 2**21
"""Maximum bytes of a table. SentencePiece's own tables have up to half a million."""
_HEADER = 4
_LABELS = np.arange(1, 256, dtype=np.int64)
_NODES_AT_ONCE = 2048
_VALUE, _LEAF, _LABEL = 0x7FFFFFFF, 1 << 8, (1 << 31) | 0xFF


class CharsmapError(ValueError):
    """Inconsistent table of a normalizer."""


def charsmap_growth(data: bytes) -> int:
    """Return the maximum number of bytes that the table makes of one byte.

    Raises CharsmapError for a table that is truncated, points outside itself, or is not UTF-8.
    """
    if len(data) > MAX_CHARSMAP:
        raise CharsmapError(f"{len(data)} bytes, more than {MAX_CHARSMAP}")
    size = int.from_bytes(data[:_HEADER], "little")
    if len(data) < _HEADER or size % 4 or not 4 <= size <= len(data) - _HEADER:
        raise CharsmapError(f"the header declares {size} bytes, but {max(len(data) - _HEADER, 0)} follow")
    pool = data[_HEADER + size :]
    try:
        pool.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CharsmapError(f"the texts are not UTF-8: {error}") from error
    return _growth(np.frombuffer(data, "<u4", size // 4, _HEADER).astype(np.int64), np.frombuffer(pool, np.uint8))


def _growth(units: npt.NDArray[np.int64], pool: npt.NDArray[np.uint8]) -> int:
    """Walk the trie of `units` by depth. A node that occurs again was visited with a shorter key before."""
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    seen = np.zeros(len(units), np.bool_)
    ends = np.append(np.flatnonzero(pool == 0), len(pool))
    nodes, depth, growth = np.array([offsets[0]]), 0, 1
    while len(nodes):
        depth += 1
        found = np.concatenate(
            [
                _children(units, seen, nodes[start : start + _NODES_AT_ONCE])
                for start in range(0, len(nodes), _NODES_AT_ONCE)
            ]
        )
        nodes = found ^ offsets[found]
        starts = units[_check_inside(units, nodes[(units[found] & _LEAF) != 0])] & _VALUE
        if len(starts):
            if starts.max() >= len(pool) or ((pool[starts] & 0xC0) == 0x80).any():
                raise CharsmapError("an offset points outside the pool of texts")
            longest = int((ends[np.searchsorted(ends, starts)] - starts).max())
            growth = max(growth, -(-longest // depth))
    return growth


def _children(
    units: npt.NDArray[np.int64], seen: npt.NDArray[np.bool_], nodes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the child units of `nodes` that are new, and mark them as `seen`."""
    every = _check_inside(units, nodes[:, None] ^ _LABELS)
    found: npt.NDArray[np.int64] = np.unique(every[(units[every] & _LABEL) == _LABELS])
    found = found[~seen[found]]
    seen[found] = True
    return found


def _check_inside(units: npt.NDArray[np.int64], nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if nodes.size and nodes.max() >= len(units):
        raise CharsmapError("an offset points outside the trie")
    return nodes
