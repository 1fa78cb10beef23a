"""Grammars of requests in the library's form, from one of three options. This module depends on the options' values,
but not on a vocabulary."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError, LopaError, error_text, raise_if_from_handler
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.bounded import BoundedExpression
from lopa.runtime.grammar.exact_schema import exact_schema
from lopa.runtime.grammar.grammar_matcher import GrammarMatcher, initial_matcher
from lopa.runtime.grammar.llguidance_library import library
from lopa.runtime.grammar.reasoning_budget import reasoning_grammar
from lopa.runtime.grammar.schema_patterns import check_set_operations
from lopa.runtime.grammar.vocabulary import Vocabulary
from lopa.runtime.options import GRAMMARS


@dataclass(frozen=True)
class GrammarRequest:
    """Grammar of one request: an option, its text, and the positions of its answer."""

    option: str
    """Name of the option, one of GRAMMARS."""
    text: str
    positions: int
    """Tokens of the answer, its end-of-text included."""


def request_from_config(config: GenerationConfig, positions: int) -> GrammarRequest:
    """Return the grammar of `config`, which must have one, for an answer of `positions` positions."""
    option = next(name for name in GRAMMARS if getattr(config, name) is not None)
    return GrammarRequest(option, getattr(config, option), positions)


def any_text_request(positions: int, vocabulary: Vocabulary) -> GrammarRequest:
    """Return a grammar that allows any text with reasoning before it, for a request with a reasoning budget only."""
    return GrammarRequest("grammar", reasoning_grammar(vocabulary.is_named), positions)


def library_grammar(request: GrammarRequest) -> str:
    """Return the grammar in the library's form. Raises BadInputError for one that it cannot parse."""
    with _option_errors(request):
        return _CONVERSIONS[request.option](request.text)


def hints_from_request(request: GrammarRequest, vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """Return texts that help to find endings of an answer. Raises BadInputError as `library_grammar` does."""
    with _option_errors(request):
        return _HINTS[request.option](request.text, vocabulary)


def matcher_from_grammar(
    request: GrammarRequest, grammar: str, vocabulary: Vocabulary, hints: tuple[bytes, ...] = ()
) -> GrammarMatcher:
    """Return the matcher of an empty answer by `grammar`, the grammar of `request` in the library's form.

    Raises BadInputError for a grammar that the library rejects.
    """
    expression = BoundedExpression(vocabulary.bytes, request.text) if request.option == "regex" else None
    with _option_errors(request):
        return initial_matcher(vocabulary, grammar, hints, expression)


def matcher_from_request(request: GrammarRequest, vocabulary: Vocabulary) -> GrammarMatcher:
    """Return the matcher of an empty answer by the grammar of `request`, within the library's own limits.

    Raises BadInputError for a syntax error, with its position, and for a schema with unsupported features, which it
    names.
    """
    hints = hints_from_request(request, vocabulary)
    return matcher_from_grammar(request, library_grammar(request), vocabulary, hints)


@contextmanager
def _option_errors(request: GrammarRequest) -> Iterator[None]:
    """Turn any error of a parser into a BadInputError that names the option."""
    try:
        yield
    except LopaError:
        raise
    except Exception as error:
        raise_if_from_handler(error)
        raise option_error(request.option, request.text, error_text(error)) from error


def _from_schema(text: str) -> str:
    made: str = library().LLMatcher.grammar_from_json_schema(exact_schema(text))
    return made


def _from_regex(text: str) -> str:
    check_set_operations(text)
    made: str = library().LLMatcher.grammar_from_regex(text)
    return made


def _from_grammar(text: str) -> str:
    """Return the library's form of a Lark grammar, or of a GBNF grammar, which has ::= and no start."""
    made: str = library().grammar_from("grammar", text if _LARK.search(text) else _GBNF_PART.sub(_plain_part, text))
    return made


_LARK = re.compile(r"^\s*(%llguidance\b|start\s*:)", re.MULTILINE)
# Every alternative matches from its first character on, so that no text takes quadratic time.
_GBNF_PART = re.compile(r'#[^\n]*|"(?:\\.|[^"\\])*(?:"|\\?\Z)|\[\^?(?:\\.|[^\]\\])*(?:\]|\\?\Z)|\.', re.DOTALL)
_GBNF_CHARACTER = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nrt\\\"\[\]]))|([^\\])", re.DOTALL
)


def _plain_part(part: re.Match[str]) -> str:
    """Return a literal or a class of GBNF in the escapes that the library reads as llama.cpp does."""
    text = part[0]
    if text == ".":
        return f"[\\x00-{chr(0x10FFFF)}]"
    if text[0] == "#":
        return text
    begin = 2 if text.startswith("[^") else 1
    made = text[:begin] + _GBNF_CHARACTER.sub(_plain_character, text[begin:-1]) + text[-1]
    if text[0] == "[":
        check_set_operations(made)
    return made


def _plain_character(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[3]
    letter = chr(int(number, 16)) if number else {"n": "\n", "r": "\r", "t": "\t"}.get(found[4], found[4]) or found[5]
    is_plain = found[0] == "-" or letter.isalnum() or letter > "\x7f"
    return letter if is_plain else f"\\x{ord(letter):02x}"


_CONVERSIONS = {"json_schema": _from_schema, "regex": _from_regex, "grammar": _from_grammar}
"""Conversions to the library's form, by option."""
_PATTERN = "pattern"
_MAX_HINTS = 16
_MAX_HINT_LENGTH = 256
"""Maximum characters of a hint."""
_EXPRESSION = re.compile(r"/((?:[^/\\\n]|\\.)+)/")
"""Regular expression in Lark syntax."""
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)+"')


def _schema_hints(text: str, vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """Return hints for a schema: a JSON text for each pattern, and numbers for `multipleOf`.

    A pattern may match anywhere in its string. A number is given if the schema has `multipleOf` and a minimum.
    """
    patterns: list[str] = []
    numbers: list[bytes] = []
    waiting: list[Any] = [json.loads(exact_schema(text))]
    while waiting and len(patterns) < _MAX_HINTS:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
            patterns += [value[_PATTERN]] if isinstance(value.get(_PATTERN), str) else []
            numbers += _least_multiple(value)
        elif isinstance(value, list):
            waiting += value
    found = [_shortest_text(pattern.removeprefix("^").removesuffix("$"), vocabulary) for pattern in patterns]
    texts = (json.dumps(each.decode(errors="ignore"), ensure_ascii=False)[1:-1].encode() for each in found if each)
    return (*texts, *numbers[:_MAX_HINTS])


def _least_multiple(schema: dict[str, Any]) -> list[bytes]:
    """Return the smallest multiple that an integer schema allows, if it has `multipleOf` and a minimum."""
    factor, minimum = schema.get("multipleOf"), schema.get("minimum")
    if isinstance(factor, int) and factor > 0 and isinstance(minimum, int):
        return [str(-(-minimum // factor) * factor).encode()]
    return []


def _grammar_hints(text: str, vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """Return a text for each expression in a grammar, and its literals."""
    found = [_shortest_text(each, vocabulary) for each in _EXPRESSION.findall(text)[:_MAX_HINTS]]
    literals = [json.loads(each).encode() for each in _LITERAL.findall(text)[:_MAX_HINTS] if _is_json(each)]
    return (*(each for each in found if each), *literals)[:_MAX_HINTS]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError as error:
        raise_if_from_handler(error)
        return False
    return True


def _shortest_text(text: str, vocabulary: Vocabulary) -> bytes | None:
    """Return a shortest match of the expression `text`, or None if none is found or `text` is no valid expression."""
    return BoundedExpression(vocabulary.bytes, text).ending(b"", _MAX_HINT_LENGTH)


def _no_hints(text: str, vocabulary: Vocabulary) -> tuple[bytes, ...]:  # noqa: ARG001
    """Return no hints, since the endings of an expression are known exactly."""
    return ()


_HINTS = {"json_schema": _schema_hints, "regex": _no_hints, "grammar": _grammar_hints}
"""Functions by option that return texts which help to find endings."""
_EXPECTED = {
    "json_schema": "a JSON schema with features of llguidance (docs/how-to/structured-output.md)",
    "regex": "a regular expression of Rust's regex crate without look-around, back-references and set operations",
    "grammar": "a grammar in llguidance's Lark or llama.cpp's GBNF syntax",
}


def rule_of_error(error: BadInputError, grammar: str) -> tuple[str, str]:
    """Return the rule of a Lark grammar that the library rejects, and its message, or empty texts."""
    found = re.search(r": at (\d+)\(\d+\): (.*)", error.received, re.DOTALL)
    line, message = (int(found[1]), found[2]) if found is not None else (0, "")
    return "".join(grammar.split("\n")[line - 1 : line]).partition(":")[0], message


def option_error(name: str, text: str, message: str) -> BadInputError:
    """Return the error of the option `name` with the value `text`, from the library's message about its grammar."""
    if message.startswith("panic"):
        return BadInputError(
            f"llguidance failed on {name} {shown(text)} ({message.splitlines()[0][:100]})",
            expected=_EXPECTED[name],
            remedy=f"rewrite {name} with fewer nested repeats",
        )
    if name == "json_schema" or (name == "grammar" and not _LARK.search(text)):
        message = _CONVERTED.sub("", message).removeprefix("failed to compile JSON schema: ")
    what = f"{name} {shown(text)}: {_regex_message(message) if name == 'regex' else message.strip()}"
    return BadInputError(what, expected=_EXPECTED[name], remedy=f"correct {name}")


_CONVERTED = re.compile(r"^ *\d+ \|.*\n?|^ *\^+ *$|^(?:at )?\d+\(\d+\): ", re.MULTILINE)
"""Places and lines of the grammar that a GBNF grammar is converted to."""


def _regex_message(message: str) -> str:
    """Return the library's message about the expression alone, without the grammar that contains it."""
    found = re.search(r"regex parse error:\n    .*\n    ( *)\^+\nerror: (.*)", message)
    if found:
        return f"{found[2]} at character {len(found[1]) + 1}"
    found = re.search(r"\(in regex\): (.*)", message)
    return found[1] if found else message.strip().splitlines()[0]
