"""The tokens of one bundle as grammars see them: the text of each, and how a text is written in few tokens.

Knows the tokenizer's definition, no grammar.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Bool
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import refused_as_bad_input
from lopa.runtime.grammar.byte_order import SYMBOLS
from lopa.runtime.grammar.library import tokenizer_from_definition, tokenizer_of_bytes
from lopa.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_PROBE = " a b"
"""A text that some tokenizers do not give back: they drop the space in front."""
_NEVER = (*SYMBOLS, 0xFF)
"""Bytes that no UTF-8 has."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Of one bundle; made once, used by every request and from any thread."""

    tokens: "LLTokenizer"
    bytes: "LLTokenizer"
    size: int
    ends: tuple[int, ...]
    """Ids that end an answer; the first is written where nothing else may follow."""
    encode: Callable[[str], list[int]]
    added: Mapping[int, bytes] = field(default_factory=dict)
    """Texts of the added tokens that the library takes for special ones although the tokenizer does not: a grammar asks
    for <tool_call> by its name, and no text literal means it. The first ones have a symbol."""

    def prepare(self) -> None:
        """Make what is else made when it is first needed."""
        assert len(self.has_text) == self.size
        assert self.writes_all_bytes or self._longest

    @cached_property
    def texts(self) -> tuple[bytes, ...]:
        """Text of every id; special tokens and ids that the tokenizer lacks have none."""
        special, decoded = self.tokens.is_special_token, self.tokens.decode_bytes
        return tuple(self.added.get(each, b"") if special(each) else decoded([each]) for each in range(self.size))

    @cached_property
    def symbols(self) -> tuple[bytes, ...]:
        """Input of the byte matcher for every id: its text, or the one symbol of an added token.

        Nothing for a token of a byte that has become a symbol: no text has that byte.
        """
        symbols = {each: bytes([symbol]) for each, symbol in zip(self.added, SYMBOLS, strict=False)}
        taken = frozenset(b"".join(symbols.values()))
        return tuple(
            symbols.get(each, b"") if each in self.added else text if taken.isdisjoint(text) else b""
            for each, text in enumerate(self.texts)
        )

    @cached_property
    def has_text(self) -> Bool:
        """[size]: which ids may stand in an answer with a grammar."""
        return np.fromiter(map(bool, self.symbols), np.bool_, self.size)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The id of every text or symbol that one token has, of equal ones the first."""
        found = dict(zip(reversed(self.symbols), range(self.size - 1, -1, -1), strict=True))
        found.pop(b"", None)
        return found

    @cached_property
    def writes_all_bytes(self) -> bool:
        """Whether every byte of UTF-8 is a token: then no text takes more tokens than it has bytes."""
        return all(bytes([each]) in self.ids for each in range(256) if each not in _NEVER)

    @cached_property
    def _longest(self) -> list[int]:
        """[256]: the length of the longest text of a token that begins with a byte."""
        longest = [0] * 256
        for text in self.ids:
            if len(text) > longest[text[0]]:
                longest[text[0]] = len(text)
        return longest

    def fewest(self, text: bytes) -> tuple[int, ...] | None:
        """The fewest tokens that make `text`, which may hold symbols; None where none do."""
        ways: list[tuple[int, int] | None] = [None] * len(text) + [(0, -1)]
        for start in range(len(text) - 1, -1, -1):
            for end in range(start + 1, min(start + self._longest[text[start]], len(text)) + 1):
                rest, found = ways[end], self.ids.get(text[start:end])
                if rest is not None and found is not None:
                    best = ways[start]
                    if best is None or rest[0] + 1 < best[0]:
                        ways[start] = rest[0] + 1, found
        if ways[0] is None:
            return None
        written: list[int] = []
        place = 0
        while place < len(text):
            step = ways[place]
            assert step is not None
            written.append(step[1])
            place += len(self.symbols[step[1]])
        return tuple(written)

    def usual(self, text: bytes) -> tuple[int, ...] | None:
        """The tokens that the tokenizer itself makes of `text`; None where they make another."""
        try:
            found = tuple(self.encode(text.decode()))
        except UnicodeDecodeError:
            return None
        return found if b"".join(self.symbols[each] for each in found) == text else None


def vocabulary_from_tokenizer(tokenizer: Tokenizer, manifest: Manifest) -> Vocabulary:
    """The tokens of a bundle. Raises BadInputError for a tokenizer whose text is not the sum of its tokens' texts, and
    MissingBackendError where the library is not installed."""
    expected = "a tokenizer whose text is that of its tokens, one behind the other (byte-level BPE)"
    remedy = "decode without a grammar: this bundle's tokenizer cannot be used with one"
    ends, size = manifest.special_tokens.ends, manifest.dimensions.vocab_size
    with refused_as_bad_input("a grammar with this bundle's tokenizer", expected=expected, remedy=remedy):
        tokens = tokenizer_from_definition(tokenizer.definition(), size, ends)
        probe = tokenizer.encode(_PROBE, add_bos=False)
        if tokens.decode_bytes(probe) != tokenizer.decode(probe).encode():
            raise BadInputError(
                f"a tokenizer that reads {_PROBE!r} as {tokenizer.decode(probe)!r}", expected=expected, remedy=remedy
            )
        texts = {each: text.encode() for each, text in tokenizer.added_texts.items() if each < size}
        added = {each: text for each, text in texts.items() if tokens.is_special_token(each)}
        of_bytes = tokenizer_of_bytes(tuple(added.values()))
    return Vocabulary(tokens, of_bytes, size, ends, lambda text: tokenizer.encode(text, add_bos=False), added)
