"""llguidance, imported nowhere else: its tokenizers, its matchers, and its errors in our words.

Knows bytes and token ids; no bundle, no branch.
"""

import importlib
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.grammar.byte_order import BYTES, SYMBOLS
from lopa.runtime.install_hint import pip_install

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_TOKEN = re.compile(rb"\xff\[(\d+)\]")
"""How the library writes a token that has no bytes."""


def library() -> Any:
    """Llguidance. Raises MissingBackendError where it is not installed."""
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise MissingBackendError(
            "a grammar, and llguidance is not installed",
            expected="the package llguidance, which says what a grammar allows",
            remedy=pip_install("grammar"),
        ) from error


def tokenizer_from_definition(definition: str, vocabulary: int, ends: tuple[int, ...]) -> "LLTokenizer":
    """The library's view of a tokenizer.json; `vocabulary` is the model's, which may have more ids."""
    made: LLTokenizer = library().LLTokenizer(definition, n_vocab=vocabulary, eos_token=list(ends), slices=[])
    return made


def tokenizer_of_bytes(names: Sequence[bytes] = ()) -> "LLTokenizer":
    """A vocabulary of the 256 bytes, and behind them an end-of-text.

    `names` are added tokens that a grammar may ask for, such as <tool_call>. They take the places of SYMBOLS, which are
    no bytes of any text, in the same order.
    """
    found = library()
    made: LLTokenizer = found.LLTokenizer(found.TokenizerWrapper(_Bytes(names)))
    return made


class _Bytes:
    """What the library asks of a tokenizer."""

    eos_token_id, bos_token_id = BYTES, None

    def __init__(self, names: Sequence[bytes]) -> None:
        symbols = dict(zip(SYMBOLS, names, strict=False))
        self.tokens = (*(symbols.get(each, bytes([each])) for each in range(BYTES)), b"<end>")
        self.special_token_ids = (*symbols, BYTES)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def forced_bytes(used: "LLMatcher") -> bytes:
    """The bytes and symbols that must follow, by a matcher of bytes."""
    found: bytes = used.compute_ff_bytes()
    return _TOKEN.sub(lambda each: bytes([int(each[1])]), found)


def lark_from_regex(expression: str) -> str:
    """A regular expression as Lark writes it, between slashes: what is in it as the library escapes it."""
    (grammar,) = json.loads(library().LLMatcher.grammar_from_regex(expression))["grammars"]
    lark: str = grammar["lark_grammar"]
    return lark.removeprefix("start: ")


def matcher(tokenizer: "LLTokenizer", grammar: str) -> "LLMatcher":
    """A matcher at the beginning of `grammar`, which is in the library's own form. Raises ValueError with its words."""
    made: LLMatcher = library().LLMatcher(tokenizer, grammar, log_level=0)
    if made.is_error():
        raise ValueError(made.get_error())
    return made


def check_works(used: "LLMatcher") -> None:
    """Raise BadInputError for a matcher that answers nothing any more: it met a limit of the library, or a text behind
    which there is no other and no end."""
    if not used.is_error():
        return
    said = used.get_error().splitlines()[0][:200]
    if said.startswith("NoExtension"):
        raise BadInputError(
            "a grammar that allows a text behind which nothing may follow, not even the end",
            expected="a grammar in which every beginning can be completed",
            remedy="correct the grammar: a part of it matches nothing",
        )
    raise BadInputError(
        f"a grammar that became too complex to follow: {said}",
        expected="a grammar within the library's limits at every text that it allows",
        remedy="write a simpler grammar, with fewer alternatives and smaller counts",
    )
