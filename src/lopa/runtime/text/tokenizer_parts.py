"""The parts of a tokenizer that handle text, bounded before the library makes or runs them.

A normalizer, a pre-tokenizer, a decoder and a post-processor are chains of small parts. Only the library's own types
are taken. How many bytes a chain can make of one is the product of what its parts can. Knows no vocabulary.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.text.backtracking import ExpressionError, shortest_match
from lopa.runtime.text.charsmap import CharsmapError, growth_of_charsmap

MAX_PARTS = 64
"""In a chain. The longest known have seven."""
MAX_GROWTH, MAX_DECODER_GROWTH = 4096, 16
"""Bytes that a chain may make of one. ALBERT's normalizer and pre-tokenizer come to 1452 by these rules: NFKD and
SentencePiece's table may make 11 each, though never of one character."""
_MAX_DEPTH = 16
_MAX_TEXT = 1024
"""Characters of a text in a part."""
_MAX_VALUES = 4096
"""In a part."""
_MAX_STRIP = 2**16
_LARGEST_CHARACTER = 4
"""Bytes."""

Part = dict[str, Any]


class PartError(ValueError):
    """A part that is refused: what is wrong with it, and what would be taken."""

    def __init__(self, received: str, expected: str) -> None:
        super().__init__(received)
        self.received = received
        self.expected = expected


@dataclass(frozen=True)
class _Kind:
    """A place for a chain in tokenizer.json."""

    name: str
    inner: str
    """The field of a Sequence with its parts."""
    growths: Mapping[str, Callable[[Part], int]]
    """By type of part: how many bytes it makes of one at most."""
    max_growth: int


def check_normalizer(part: Any) -> int:
    """Return how many bytes a normalizer makes of one at most; puts its tables into one form.

    Raises PartError for another type, for a chain that is too long or grows too much, for a table that is broken and
    for an expression whose search is not bounded. So do the functions below.
    """
    return _checked_growth(part, _NORMALIZER)


def check_pre_tokenizer(part: Any) -> int:
    """Return how many bytes a pre-tokenizer makes of one at most."""
    return _checked_growth(part, _PRE_TOKENIZER)


def check_decoder(part: Any) -> None:
    """Raise PartError for a decoder that is not bounded."""
    _checked_growth(part, _DECODER)


def check_post_processor(part: Any) -> None:
    """Raise PartError for a post-processor that is not bounded."""
    _checked_growth(part, _POST_PROCESSOR)


def local_parts(normalizer: Any) -> tuple[list[Part], int]:
    """Return the first parts of a checked normalizer, and how many bytes the others make of one.

    The first ones treat each character by itself: what they do to a text can be measured on pieces of it. `Strip` is
    left out, which only takes away at the ends.
    """
    local: list[Part] = []
    growth, all_local = 1, True
    for part, _ in _parts_in(normalizer, _NORMALIZER) if normalizer is not None else ():
        all_local = all_local and (part["type"] in _LOCAL or "String" in part.get("pattern", ()))
        if not all_local:
            growth *= _NORMALIZER.growths[part["type"]](part)
        elif part["type"] != "Strip":
            local.append(part)
    return local, growth


def _checked_growth(part: Any, kind: _Kind) -> int:
    if part is None:
        return 1
    growth = 1
    for count, (each, place) in enumerate(_parts_in(part, kind), 1):
        if count > MAX_PARTS:
            raise PartError(f"a {kind.name} with more than {MAX_PARTS} parts", f"at most {MAX_PARTS}")
        _check_values(each, place)
        try:
            own = kind.growths[each["type"]](each)
        except (ExpressionError, CharsmapError) as error:
            raise PartError(f"{place}: {each['type']}: {error}", _EXPECTED[type(error)]) from error
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, PartError):
                raise
            raise PartError(
                f"{place}: {shown(each)}", f"what the tokenizers library writes for {each['type']}"
            ) from error
        growth *= own
        if growth > kind.max_growth:
            raise PartError(
                f"a {kind.name} that makes up to {growth} bytes of one, by {place}: {each['type']}",
                f"at most {kind.max_growth}",
            )
    return growth


def _parts_in(part: Any, kind: _Kind, place: str = "", depth: int = 0) -> Iterator[tuple[Part, str]]:
    """The parts of a chain with the place of each; a Sequence is its parts."""
    place = place or kind.name
    name = part.get("type") if isinstance(part, dict) else None
    if not isinstance(name, str):
        raise PartError(f"{place}: {shown(part)}", "an object with a type")
    if name != "Sequence":
        if name not in kind.growths:
            raise PartError(f"{place}: type {shown(name)}", "one of Sequence, " + ", ".join(sorted(kind.growths)))
        yield part, place
        return
    inner = part.get(kind.inner)
    if not isinstance(inner, list) or depth >= _MAX_DEPTH:
        raise PartError(f"{place}: {shown(part)}", f"a list {kind.inner!r}, at most {_MAX_DEPTH} inside each other")
    if len(inner) > MAX_PARTS:
        raise PartError(f"{place} with {len(inner)} parts", f"at most {MAX_PARTS}")
    for number, each in enumerate(inner):
        yield from _parts_in(each, kind, f"{place}.{kind.inner}[{number}]", depth + 1)


_LONG = ("pattern", "precompiled_charsmap")
"""Fields with limits of their own."""


def _check_values(part: Part, place: str) -> None:
    """Raise PartError for texts that are too long, and for too many values."""
    waiting: list[Any] = [value for name, value in part.items() if name not in _LONG]
    count = 0
    while waiting:
        value = waiting.pop()
        count += 1
        if count > _MAX_VALUES:
            raise PartError(f"{place} with more than {_MAX_VALUES} values", f"at most {_MAX_VALUES}")
        if isinstance(value, str) and len(value) > _MAX_TEXT:
            raise PartError(f"{place}: a text of {len(value)} characters", f"at most {_MAX_TEXT}")
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value


def _bytes_of(part: Part, name: str) -> int:
    text = part[name]
    if not isinstance(text, str):
        raise TypeError(name)
    return len(text.encode())


def _shortest(part: Part) -> int:
    """The fewest bytes that a pattern matches, which is {"String": text} or {"Regex": expression}."""
    ((kind, text),) = part["pattern"].items()
    if not isinstance(text, str) or kind not in ("String", "Regex"):
        raise TypeError(kind)
    if kind == "Regex":
        return shortest_match(text)
    if not 0 < len(text) <= _MAX_TEXT:
        raise PartError(f"a pattern of {len(text)} characters", f"a text of 1 to {_MAX_TEXT} characters")
    return len(text.encode())


def _growth_of_replace(part: Part) -> int:
    made, shortest = _bytes_of(part, "content"), _shortest(part)
    return max(1, -(-made // shortest)) if shortest else 1 + made


def _growth_of_split(part: Part) -> int:
    _shortest(part)
    return 1


def _growth_of_charsmap(part: Part) -> int:
    """And the table in the one form that both this module and the library read alike."""
    try:
        table = base64.b64decode(part["precompiled_charsmap"], validate=True)
    except binascii.Error as error:
        raise CharsmapError(f"not base64: {error}") from error
    part["precompiled_charsmap"] = base64.b64encode(table).decode()
    return growth_of_charsmap(table)


def _growth_of_metaspace(part: Part) -> int:
    """A space becomes the mark, and one stands in front."""
    mark = part.get("replacement")
    return 2 * (len(mark.encode()) if isinstance(mark, str) else _LARGEST_CHARACTER)


def _growth_of_bytes(part: Part) -> int:
    """A byte becomes a letter of one or two, and a space may stand in front."""
    return 2 if part.get("add_prefix_space") is False else 4


def _growth_of_strip(part: Part) -> int:
    if not all(0 <= part[name] <= _MAX_STRIP for name in ("start", "stop")):
        raise PartError(f"Strip of {part['start']} and {part['stop']} characters", f"at most {_MAX_STRIP}")
    return 1


def _growth_of_template(part: Part) -> int:
    """A text may stand in a template once."""
    for name in ("single", "pair"):
        ids = [piece["Sequence"]["id"] for piece in part[name] if "Sequence" in piece]
        if len(set(ids)) < len(ids):
            raise PartError(f"a template that repeats its text: {shown(part[name])}", "each text once")
    return 1


def _fixed(growth: int) -> Callable[[Part], int]:
    return lambda _part: growth


_SAME = _fixed(1)
_UNICODE = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11}
"""Bytes of UTF-8 that a normal form makes of one at most, as Unicode's own table of them says."""
_LOCAL = frozenset(
    (*_UNICODE, "BertNormalizer", "ByteLevel", "Lowercase", "Nmt", "Precompiled", "Strip", "StripAccents")
)
_NORMALIZER = _Kind(
    "normalizer",
    "normalizers",
    {
        **{name: _fixed(growth) for name, growth in _UNICODE.items()},
        **dict.fromkeys(("Nmt", "Strip", "StripAccents"), _SAME),
        "BertNormalizer": _fixed(4),  # small letters, accents apart, a Chinese sign between two spaces
        "ByteLevel": _fixed(2),
        "Lowercase": _fixed(2),
        "Precompiled": _growth_of_charsmap,
        "Prepend": lambda part: 1 + _bytes_of(part, "prepend"),  # in front of each piece between added tokens
        "Replace": _growth_of_replace,
    },
    MAX_GROWTH,
)
_PRE_TOKENIZER = _Kind(
    "pre_tokenizer",
    "pretokenizers",
    {
        **dict.fromkeys(
            (
                *("BertPreTokenizer", "CharDelimiterSplit", "Digits", "FixedLength", "Punctuation", "UnicodeScripts"),
                *("Whitespace", "WhitespaceSplit"),
            ),
            _SAME,
        ),
        "ByteLevel": _growth_of_bytes,
        "Metaspace": _growth_of_metaspace,
        "Split": _growth_of_split,
    },
    MAX_GROWTH,
)
_DECODER = _Kind(
    "decoder",
    "decoders",
    {
        **dict.fromkeys(("ByteFallback", "Fuse", "Metaspace"), _SAME),
        **dict.fromkeys(("BPEDecoder", "ByteLevel", "CTC", "WordPiece"), _fixed(2)),  # spaces between; U+FFFD
        "Replace": _growth_of_replace,
        "Strip": _growth_of_strip,
    },
    MAX_DECODER_GROWTH,
)
_POST_PROCESSOR = _Kind(
    "post_processor",
    "processors",
    {
        **dict.fromkeys(("BertProcessing", "ByteLevel", "RobertaProcessing"), _SAME),
        "TemplateProcessing": _growth_of_template,
    },
    1,
)
_EXPECTED = {
    ExpressionError: "an expression whose search takes steps in proportion to the text: no repeat without a limit in "
    "or behind another one, where a later part can fail; no references back",
    CharsmapError: "a table as SentencePiece makes it",
}
