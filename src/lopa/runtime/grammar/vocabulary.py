"""Tokens of one bundle for grammars: their texts, and short tokenizations of a text.

This module uses the tokenizer's definition, and does not depend on grammars.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Bool
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.grammar.byte_order import SYMBOLS
from lopa.runtime.grammar.llguidance_library import byte_tokenizer, tokenizer_from_definition
from lopa.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_PROBE = " a b"
"""Probe text: some tokenizers drop its leading space."""
_NOT_IN_UTF8 = (*SYMBOLS, 0xFF)
"""Bytes that never occur in UTF-8."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Vocabulary of one bundle, created once and shared by all requests and threads."""

    tokens: "LLTokenizer"
    bytes: "LLTokenizer"
    size: int
    ends: tuple[int, ...]
    """IDs that end an answer; the first one is written when nothing else may follow."""
    encode: Callable[[str], list[int]]
    added: Mapping[int, bytes] = field(default_factory=dict)
    """Texts of added tokens that the library treats as special and the tokenizer does not.

    A grammar requests <tool_call> by its name, and no text literal matches it. The first len(SYMBOLS) of these tokens
    also have a symbol.
    """

    def prepare(self) -> None:
        """Compute all values that would otherwise be computed on first use."""
        assert len(self.has_text) == self.size
        assert self.writes_all_bytes or self._longest

    @cached_property
    def texts(self) -> tuple[bytes, ...]:
        """Text of every ID, empty for special tokens and IDs that the tokenizer lacks."""
        special, decoded = self.tokens.is_special_token, self.tokens.decode_bytes
        return tuple(self.added.get(each, b"") if special(each) else decoded([each]) for each in range(self.size))

    @cached_property
    def symbols(self) -> tuple[bytes, ...]:
        """Byte matcher's input for every ID: its text, or the symbol of an added token.

        It is empty for a token whose byte is used as a symbol, since no text contains that byte.
        """
        symbols = {each: bytes([symbol]) for each, symbol in zip(self.added, SYMBOLS, strict=False)}
        taken = frozenset(b"".join(symbols.values()))
        return tuple(
            symbols.get(each, b"") if each in self.added else text if taken.isdisjoint(text) else b""
            for each, text in enumerate(self.texts)
        )

    @cached_property
    def added_ids(self) -> Mapping[bytes, int]:
        """ID by text of the added tokens that a grammar names without quotes and whose symbol is known."""
        return {text: number for number, text in self.added.items() if self.symbols[number]}

    def is_named(self, text: str) -> bool:
        """Return whether a grammar names the added token `text` without quotes."""
        return text.encode() in self.added_ids

    @cached_property
    def has_text(self) -> Bool:
        """Mask [size] of IDs that may occur in an answer with a grammar."""
        return np.fromiter(map(bool, self.symbols), np.bool_, self.size)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """ID of every text or symbol of a single token, the first one of equal texts."""
        found = dict(zip(reversed(self.symbols), range(self.size - 1, -1, -1), strict=True))
        found.pop(b"", None)
        return found

    @cached_property
    def writes_all_bytes(self) -> bool:
        """True if every byte of UTF-8 is a token. Then no text takes more tokens than bytes."""
        return all(bytes([each]) in self.ids for each in range(256) if each not in _NOT_IN_UTF8)

    @cached_property
    def _longest(self) -> list[int]:
        """Length of the longest token text by its first byte, [256]."""
        longest = [0] * 256
        for text in self.ids:
            if len(text) > longest[text[0]]:
                longest[text[0]] = len(text)
        return longest

    def fewest_tokens(self, text: bytes) -> tuple[int, ...] | None:
        """Return the fewest tokens that make `text`, which may contain symbols, or None."""
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
        position = 0
        while position < len(text):
            step = ways[position]
            assert step is not None
            written.append(step[1])
            position += len(self.symbols[step[1]])
        return tuple(written)

    def tokenizer_tokens(self, text: bytes) -> tuple[int, ...] | None:
        """Return the tokenizer's own tokens for `text`, or None if they make another text."""
        try:
            found = tuple(self.encode(text.decode()))
        except UnicodeDecodeError:
            return None
        return found if b"".join(self.symbols[each] for each in found) == text else None


def vocabulary_from_tokenizer(tokenizer: Tokenizer, manifest: Manifest) -> Vocabulary:
    """Return the vocabulary of a bundle.

    Raises BadInputError for a tokenizer whose text is not the concatenation of its tokens' texts, and
    MissingBackendError without the library.
    """
    expected = "a tokenizer whose text is the concatenation of its tokens' texts (byte-level BPE)"
    remedy = "decode without a grammar, which this bundle's tokenizer does not support"
    ends, size = manifest.special_tokens.ends, manifest.dimensions.vocab_size
    with errors_as_bad_input("this bundle's tokenizer does not support grammars", expected=expected, remedy=remedy):
        tokens = tokenizer_from_definition(tokenizer.definition(), size, ends)
        probe = tokenizer.encode(_PROBE, add_bos=False)
        if tokens.decode_bytes(probe) != tokenizer.decode(probe).encode():
            raise BadInputError(
                f"tokenizer decodes {_PROBE!r} as {tokenizer.decode(probe)!r}", expected=expected, remedy=remedy
            )
        texts = {each: text.encode() for each, text in tokenizer.added_texts.items() if each < size}
        added = {each: text for each, text in texts.items() if tokens.is_special_token(each)}
        of_bytes = byte_tokenizer(tuple(added.values()))
    return Vocabulary(tokens, of_bytes, size, ends, lambda text: tokenizer.encode(text, add_bos=False), added)
