"""Text-processing parts of a tokenizer, bounded before the library creates or runs them.

A normalizer, pre-tokenizer, decoder or post-processor is a chain of small parts. Only the library's own types are
accepted. The growth of a chain is the product of its parts' growths. This module does not depend on vocabularies.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import is_from_signal_handler
from lopa.runtime.text.charsmap import CharsmapError, charsmap_growth
from lopa.runtime.text.known_expressions import shortest_match

TRUST = "LOPA_TRUST_TOKENIZER"
"""Environment variable: 1 accepts unknown regular expressions."""
MAX_PARTS = 64
"""Maximum parts of a chain. The longest known have seven."""
MAX_GROWTH, MAX_DECODER_GROWTH = 4096, 16
"""Maximum bytes that a chain makes of one byte. ALBERT's normalizer and pre-tokenizer reach 1452 by these rules: NFKD
and SentencePiece's table count 11 each, though never for the same character."""
_MAX_DEPTH = 16
_MAX_TEXT = 1024
"""Maximum characters of a text in a part."""
_MAX_VALUES = 4096
"""Maximum values in a part."""
_MAX_STRIP = 2**16
_MAX_CHARACTER_BYTES = 4
"""Bytes of the largest UTF-8 character."""

Part = dict[str, Any]


class PartError(ValueError):
    """Error about a part: what is wrong with it, what is accepted, and what to do if that is not to copy it again."""

    def __init__(self, received: str, expected: str, remedy: str | None = None) -> None:
        super().__init__(received)
        self.received = received
        self.expected = expected
        self.remedy = remedy


@dataclass(frozen=True)
class _Kind:
    """Kind of chain in tokenizer.json."""

    name: str
    inner: str
    """Name of the field in which a Sequence has its parts."""
    growths: Mapping[str, Callable[[Part], int]]
    """Maximum bytes made of one byte, by type of part."""
    max_growth: int


def check_normalizer(part: Any, *, trusted: bool) -> int:
    """Return the maximum growth of a normalizer, in bytes per byte, and normalize its tables.

    Raises PartError for an unknown type, a chain that is too long or grows too much, and a broken table. Unless the
    part is `trusted`, an unknown expression is an error too. The functions below raise it for the same reasons.
    """
    return _check_growth(part, _NORMALIZER, trusted)


def check_pre_tokenizer(part: Any, *, trusted: bool) -> int:
    """Return the maximum growth of a pre-tokenizer, in bytes per byte."""
    return _check_growth(part, _PRE_TOKENIZER, trusted)


def check_decoder(part: Any, *, trusted: bool) -> None:
    """Raise PartError for an unbounded decoder."""
    _check_growth(part, _DECODER, trusted)


def check_post_processor(part: Any) -> None:
    """Raise PartError for an unbounded post-processor."""
    _check_growth(part, _POST_PROCESSOR)


def local_parts(normalizer: Any) -> tuple[list[Part], int]:
    """Return the first parts of a checked normalizer, and the growth of the others.

    The first parts treat each character separately, so their effect can be measured on pieces of a text. `Strip` is
    left out, since it only removes characters at the ends.
    """
    local: list[Part] = []
    growth, all_local = 1, True
    for part, _ in _iterate_parts(normalizer, _NORMALIZER) if normalizer is not None else ():
        all_local = all_local and (part["type"] in _LOCAL or "String" in part.get("pattern", ()))
        if not all_local:
            growth *= _NORMALIZER.growths[part["type"]](part)
        elif part["type"] != "Strip":
            local.append(part)
    return local, growth


def _check_growth(part: Any, kind: _Kind, trusted: bool = False) -> int:
    if part is None:
        return 1
    growth = 1
    for count, (each, location) in enumerate(_iterate_parts(part, kind), 1):
        if count > MAX_PARTS:
            raise PartError(f"{kind.name} with more than {MAX_PARTS} parts", f"at most {MAX_PARTS} parts")
        _check_values(each, location)
        try:
            own = kind.growths[each["type"]](each)
        except CharsmapError as error:
            raise PartError(f"{location}: {each['type']}: {error}", "a table as written by SentencePiece") from error
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, PartError) or is_from_signal_handler(error):
                raise
            raise PartError(
                f"{location}: {shown(each)}", f"{each['type']} as the tokenizers library writes it"
            ) from error
        if not trusted and each["type"] in ("Replace", "Split"):
            _check_expression(each["pattern"].get("Regex"), f"{location}: {each['type']}")
        growth *= own
        if growth > kind.max_growth:
            raise PartError(
                f"{kind.name} turns one byte into up to {growth}, at {location}: {each['type']}",
                f"at most {kind.max_growth} bytes",
            )
    return growth


def _check_expression(expression: str | None, location: str) -> None:
    """Raise PartError for an unknown regular expression."""
    if expression is not None and shortest_match(expression) is None:
        raise PartError(
            f"{location} has the regular expression {shown(expression)}, which may take unlimited time on a text",
            "the expression of a published tokenizer, or characters and classes of which the last may repeat",
            f"if you trust the author of this tokenizer, set {TRUST}=1, or sign the bundle and serve it with "
            "--require-signature",
        )


def _iterate_parts(part: Any, kind: _Kind, location: str = "", depth: int = 0) -> Iterator[tuple[Part, str]]:
    """Yield the parts of a chain with their locations. A Sequence yields its parts."""
    location = location or kind.name
    name = part.get("type") if isinstance(part, dict) else None
    if not isinstance(name, str):
        raise PartError(f"{location}: {shown(part)}", "an object with a type")
    if name != "Sequence":
        if name not in kind.growths:
            raise PartError(f"{location}: type {shown(name)}", "one of Sequence, " + ", ".join(sorted(kind.growths)))
        yield part, location
        return
    inner = part.get(kind.inner)
    if not isinstance(inner, list) or depth >= _MAX_DEPTH:
        raise PartError(f"{location}: {shown(part)}", f"a list {kind.inner!r}, nested at most {_MAX_DEPTH} levels")
    if len(inner) > MAX_PARTS:
        raise PartError(f"{location} with {len(inner)} parts", f"at most {MAX_PARTS} parts")
    for number, each in enumerate(inner):
        yield from _iterate_parts(each, kind, f"{location}.{kind.inner}[{number}]", depth + 1)


_SEPARATELY_LIMITED = ("pattern", "precompiled_charsmap")
"""Fields with separate limits."""


def _check_values(part: Part, location: str) -> None:
    """Raise PartError for too long texts and too many values."""
    waiting: list[Any] = [value for name, value in part.items() if name not in _SEPARATELY_LIMITED]
    count = 0
    while waiting:
        value = waiting.pop()
        count += 1
        if count > _MAX_VALUES:
            raise PartError(f"{location} with more than {_MAX_VALUES} values", f"at most {_MAX_VALUES} values")
        if isinstance(value, str) and len(value) > _MAX_TEXT:
            raise PartError(f"{location}: text of {len(value)} characters", f"at most {_MAX_TEXT} characters")
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value


def _byte_count(part: Part, name: str) -> int:
    text = part[name]
    if not isinstance(text, str):
        raise TypeError(name)
    return len(text.encode())


def _min_match_bytes(part: Part) -> int:
    """Return the minimum number of bytes that a pattern matches: {"String": text} or {"Regex": expression}.

    It is 0 for an unknown expression.
    """
    ((kind, text),) = part["pattern"].items()
    if not isinstance(text, str) or kind not in ("String", "Regex"):
        raise TypeError(kind)
    if kind == "Regex":
        return shortest_match(text) or 0
    if not 0 < len(text) <= _MAX_TEXT:
        raise PartError(f"a pattern has {len(text)} characters", f"1 to {_MAX_TEXT} characters")
    return len(text.encode())


def _replace_growth(part: Part) -> int:
    content_bytes, shortest = _byte_count(part, "content"), _min_match_bytes(part)
    # An expression that matches nothing does so before each character and at the end of the text.
    return max(1, -(-content_bytes // shortest)) if shortest else 1 + 2 * content_bytes


def _split_growth(part: Part) -> int:
    _min_match_bytes(part)
    return 1


def _charsmap_growth(part: Part) -> int:
    """Return the growth of the table, and rewrite it so that this module and the library read it in the same way."""
    try:
        table = base64.b64decode(part["precompiled_charsmap"], validate=True)
    except binascii.Error as error:
        raise CharsmapError(f"not base64: {error}") from error
    part["precompiled_charsmap"] = base64.b64encode(table).decode()
    return charsmap_growth(table)


def _metaspace_growth(part: Part) -> int:
    """Return the growth of Metaspace, which replaces spaces by its mark and adds one in front."""
    mark = part.get("replacement")
    return 2 * (len(mark.encode()) if isinstance(mark, str) else _MAX_CHARACTER_BYTES)


def _byte_level_growth(part: Part) -> int:
    """Return the growth of ByteLevel: a byte becomes a letter of one or two bytes, and a space may be added."""
    return 2 if part.get("add_prefix_space") is False else 4


def _strip_growth(part: Part) -> int:
    if not all(0 <= part[name] <= _MAX_STRIP for name in ("start", "stop")):
        raise PartError(f"Strip of {part['start']} and {part['stop']} characters", f"at most {_MAX_STRIP}")
    return 1


def _template_growth(part: Part) -> int:
    """Check that a template contains each text once, and return 1."""
    for name in ("single", "pair"):
        ids = [piece["Sequence"]["id"] for piece in part[name] if "Sequence" in piece]
        if len(set(ids)) < len(ids):
            raise PartError(f"template repeats its text: {shown(part[name])}", "each text once")
    return 1


def _fixed(growth: int) -> Callable[[Part], int]:
    return lambda _part: growth


_SAME = _fixed(1)
_UNICODE = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11}
"""Maximum UTF-8 bytes that a normal form makes of one byte, from Unicode's table."""
_LOCAL = frozenset(
    (*_UNICODE, "BertNormalizer", "ByteLevel", "Lowercase", "Nmt", "Precompiled", "Strip", "StripAccents")
)
_NORMALIZER = _Kind(
    "normalizer",
    "normalizers",
    {
        **{name: _fixed(growth) for name, growth in _UNICODE.items()},
        **dict.fromkeys(("Nmt", "Strip", "StripAccents"), _SAME),
        "BertNormalizer": _fixed(4),  # lower case, separate accents, spaces around Chinese characters
        "ByteLevel": _fixed(2),
        "Lowercase": _fixed(2),
        "Precompiled": _charsmap_growth,
        "Prepend": lambda part: 1 + _byte_count(part, "prepend"),  # once per piece between added tokens
        "Replace": _replace_growth,
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
        "ByteLevel": _byte_level_growth,
        "Metaspace": _metaspace_growth,
        "Split": _split_growth,
    },
    MAX_GROWTH,
)
_DECODER = _Kind(
    "decoder",
    "decoders",
    {
        **dict.fromkeys(("ByteFallback", "Fuse", "Metaspace"), _SAME),
        **dict.fromkeys(("BPEDecoder", "ByteLevel", "CTC", "WordPiece"), _fixed(2)),  # spaces between tokens; U+FFFD
        "Replace": _replace_growth,
        "Strip": _strip_growth,
    },
    MAX_DECODER_GROWTH,
)
_POST_PROCESSOR = _Kind(
    "post_processor",
    "processors",
    {
        **dict.fromkeys(("BertProcessing", "ByteLevel", "RobertaProcessing"), _SAME),
        "TemplateProcessing": _template_growth,
    },
    1,
)
