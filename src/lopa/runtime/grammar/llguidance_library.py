"""Interface to llguidance, the only module that imports it: its tokenizers, matchers and errors.

This module handles bytes and token IDs, and does not depend on bundles or branches.
"""

import importlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.extra import extra_needed
from lopa.runtime.grammar.byte_order import BYTES, SYMBOLS

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_TOKEN = re.compile(rb"\xff\[(\d+)\]")
"""Library's notation of a token without bytes."""


def library() -> Any:
    """Return the module llguidance. Raises MissingBackendError if it is not installed or cannot be loaded."""
    try:
        with extra_needed("grammar", ("llguidance",), "the package llguidance, which a grammar requires"):
            return importlib.import_module("llguidance")
    except (ImportError, MemoryError) as error:
        raise MissingBackendError(
            f"llguidance cannot be loaded: {error or 'no memory'}",
            expected="the package llguidance, and memory for it",
            remedy="free memory, or install the package again",
        ) from error


def tokenizer_from_definition(definition: str, vocabulary: int, ends: tuple[int, ...]) -> "LLTokenizer":
    """Return the library's tokenizer of a tokenizer.json. `vocabulary` is the size of the model's vocabulary, which may
    exceed the tokenizer's."""
    made: LLTokenizer = library().LLTokenizer(definition, n_vocab=vocabulary, eos_token=list(ends), slices=[])
    return made


def byte_tokenizer(names: Sequence[bytes] = ()) -> "LLTokenizer":
    """Return a tokenizer of the 256 bytes and an end-of-text.

    `names` are added tokens that a grammar may name, such as <tool_call>. They take the places of SYMBOLS, bytes that
    no text contains, in order.
    """
    return _tokenizer_of_bytes(_tokenizer_of_bytes(list, ()).greedy_tokenize, names)


def _tokenizer_of_bytes(encode: Callable[[str], list[Any]], names: Sequence[bytes]) -> "LLTokenizer":
    """Return a tokenizer that calls `encode` for the bytes of a text.

    It must be native code. The library swallows exceptions of Python code, also those of signal handlers that interrupt
    it, and the text then does not match.
    """
    symbols = dict(zip(SYMBOLS, names, strict=False))
    tokens = [*(symbols.get(each, bytes([each])) for each in range(BYTES)), b"<end>"]
    wrapper = partial(encode)  # native, and may have attributes
    vars(wrapper).update(is_tokenizer_wrapper=True, eos_token_id=BYTES, bos_token_id=None)
    vars(wrapper).update(tokens=tokens, special_token_ids=[*symbols, BYTES])
    made: LLTokenizer = library().LLTokenizer(wrapper)
    return made


def forced_bytes(used: "LLMatcher") -> bytes:
    """Return the bytes and symbols that must follow in the text of a byte matcher."""
    found: bytes = used.compute_ff_bytes()
    return _TOKEN.sub(lambda each: bytes([int(each[1])]), found)


def lark_from_regex(expression: str) -> str:
    """Return a regular expression in Lark syntax, between slashes and escaped by the library."""
    (grammar,) = json.loads(library().LLMatcher.grammar_from_regex(expression))["grammars"]
    lark: str = grammar["lark_grammar"]
    return lark.removeprefix("start: ")


def matcher(tokenizer: "LLTokenizer", grammar: str) -> "LLMatcher":
    """Return a matcher at the beginning of `grammar` in the library's form. Raises ValueError with the library's
    message.
    """
    made: LLMatcher = library().LLMatcher(tokenizer, grammar, log_level=0)
    if made.is_error():
        raise ValueError(made.get_error())
    return made


def is_empty(expression: str) -> bool:
    """Return whether no text matches an expression in Lark syntax. Raises ValueError with the library's message."""
    found = matcher(byte_tokenizer(), library().LLMatcher.grammar_from_lark(f"start: MATCH\nMATCH: {expression}\n"))
    found.compute_bitmask()
    check_matcher(found, *DEAD_END)
    return bool(found.is_error())


DEAD_END = ("NoExtension",)
"""Beginning of the library's message if nothing matches."""
LIMITS = ("lexer error", "LexerTooComplex", "ParserTooComplex")
"""Beginnings of its messages if a limit was exceeded."""


def check_matcher(used: "LLMatcher", *expected: str) -> None:
    """Raise BadInputError for a failed matcher, unless its message begins as one of `expected`.

    The matcher exceeded a limit of the library, or its text can neither continue nor end.
    """
    if not used.is_error() or used.get_error().startswith(expected):
        return
    message = used.get_error().splitlines()[0][:200]
    if message.startswith("NoExtension"):
        raise BadInputError(
            "the grammar allows a text that can neither continue nor end",
            expected="a grammar in which every allowed beginning can be completed",
            remedy="correct the part of the grammar that matches nothing",
        )
    raise BadInputError(
        f"grammar became too complex while decoding: {message}",
        expected="a grammar within the library's limits for every allowed text",
        remedy="simplify the grammar: use fewer alternatives and smaller counts",
    )
