"""From what a request asks for to a grammar in the library's own form: one of three options, checked and named.

Knows the options' values, no vocabulary.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError, LopaError
from lopa.runtime.files.untrusted_input import said_by
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.bounded import BoundedExpression
from lopa.runtime.grammar.library import library
from lopa.runtime.grammar.reading import Reading, reading_of_nothing
from lopa.runtime.grammar.vocabulary import Vocabulary
from lopa.runtime.plan import GRAMMARS

_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is written where its schema does not say otherwise: in one way alone, so that much of it is forced."""
_STRICT = {"lenient": False, "coerce_one_of": False}
"""What a schema may not ask for: features that it names and the library lacks, ignored."""


@dataclass(frozen=True)
class GrammarRequest:
    """Grammar of one request: an option, its text, and the positions of its answer."""

    option: str
    """One of GRAMMARS."""
    text: str
    positions: int
    """Tokens of the answer, its end-of-text included."""


def request_from_config(config: GenerationConfig, positions: int) -> GrammarRequest:
    """Return the grammar that `config` asks for, which it has to, for an answer of so many positions."""
    option = next(name for name in GRAMMARS if getattr(config, name) is not None)
    return GrammarRequest(option, getattr(config, option), positions)


def library_grammar(request: GrammarRequest) -> str:
    """Return the grammar in the library's own form. Raises BadInputError for one that it cannot read."""
    with _errors_of(request):
        return _MADE[request.option](request.text)


def hints_from_request(request: GrammarRequest, vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """Return texts that help to find how an answer can end. Raises BadInputError as `library_grammar` does."""
    with _errors_of(request):
        return _HINTS[request.option](request.text, vocabulary)


def reading_from_grammar(
    request: GrammarRequest, grammar: str, vocabulary: Vocabulary, hints: tuple[bytes, ...] = ()
) -> Reading:
    """Return the reading of an empty answer by `grammar`, which is `request`'s in the library's own form.

    Raises BadInputError for a grammar that the library does not take.
    """
    expression = BoundedExpression(vocabulary.bytes, request.text) if request.option == "regex" else None
    with _errors_of(request):
        return reading_of_nothing(vocabulary, grammar, hints, expression)


def reading_from_request(request: GrammarRequest, vocabulary: Vocabulary) -> Reading:
    """Return the reading of an empty answer by the grammar of `request`, within the library's own limits.

    Raises BadInputError for a grammar that does not parse, with the place, and for a schema with features that the
    library lacks, which it names.
    """
    hints = hints_from_request(request, vocabulary)
    return reading_from_grammar(request, library_grammar(request), vocabulary, hints)


@contextmanager
def _errors_of(request: GrammarRequest) -> Iterator[None]:
    """Turn whatever a parser raises at somebody's text into a BadInputError that names the option."""
    try:
        yield
    except LopaError:
        raise
    except Exception as error:
        raise _refused(request.option, request.text, said_by(error)) from error


def _from_schema(text: str) -> str:
    made: str = library().LLMatcher.grammar_from_json_schema(text, defaults=_WRITTEN, overrides=_STRICT)
    return made


def _from_regex(text: str) -> str:
    made: str = library().LLMatcher.grammar_from_regex(text)
    return made


def _from_grammar(text: str) -> str:
    """Lark as the library takes it, or GBNF, which has ::= and no start."""
    made: str = library().grammar_from("grammar", text)
    return made


_MADE = {"json_schema": _from_schema, "regex": _from_regex, "grammar": _from_grammar}
"""By option."""
_PATTERN = "pattern"
_MAX_HINTS = 16
_MAX_OF_HINT = 256
"""Characters."""
_EXPRESSION = re.compile(r"/((?:[^/\\\n]|\\.)+)/")
"""As Lark writes one."""
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)+"')


def _hints_of_schema(text: str, vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """A text for each pattern of a schema, as JSON writes it: a pattern may stand anywhere in its string; and the least
    multiple where there are multiples and a least number."""
    patterns: list[str] = []
    numbers: list[bytes] = []
    waiting: list[Any] = [json.loads(text)]
    while waiting and len(patterns) < _MAX_HINTS:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
            patterns += [value[_PATTERN]] if isinstance(value.get(_PATTERN), str) else []
            numbers += _least_multiple(value)
        elif isinstance(value, list):
            waiting += value
    found = [_text_of_regex(pattern.removeprefix("^").removesuffix("$"), vocabulary) for pattern in patterns]
    texts = (json.dumps(each.decode(errors="ignore"), ensure_ascii=False)[1:-1].encode() for each in found if each)
    return (*texts, *numbers[:_MAX_HINTS])


def _least_multiple(schema: dict[str, Any]) -> list[bytes]:
    """The least multiple that a schema of whole numbers allows, if it asks for one and for at least so much."""
    factor, lower, above = (schema.get(name) for name in ("multipleOf", "minimum", "exclusiveMinimum"))
    if isinstance(factor, int) and factor > 0:
        if isinstance(lower, int):
            return [str(-(-lower // factor) * factor).encode()]
        if isinstance(above, int):
            return [str((above // factor + 1) * factor).encode()]
    return []


def _hints_of_grammar(text: str, vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """A text for each of the expressions in a grammar, which may ask for something between any texts; its literals."""
    found = [_text_of_regex(each, vocabulary) for each in _EXPRESSION.findall(text)[:_MAX_HINTS]]
    literals = [json.loads(each).encode() for each in _LITERAL.findall(text)[:_MAX_HINTS] if _is_json(each)]
    return (*(each for each in found if each), *literals)[:_MAX_HINTS]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _text_of_regex(text: str, vocabulary: Vocabulary) -> bytes | None:
    """A shortest text that matches all of `text`; None where none is found, as in what is no expression."""
    return BoundedExpression(vocabulary.bytes, text).ending(b"", _MAX_OF_HINT)


def _no_hints(text: str, vocabulary: Vocabulary) -> tuple[bytes, ...]:  # noqa: ARG001
    """Of an expression alone, whose endings are known exactly."""
    return ()


_HINTS = {"json_schema": _hints_of_schema, "regex": _no_hints, "grammar": _hints_of_grammar}
"""By option: texts that help to find how a text can end."""
_EXPECTED = {
    "json_schema": "a JSON schema of the features that llguidance has (docs/grammars.md)",
    "regex": "a regular expression in the syntax of Rust's regex crate: no look-around, no references back",
    "grammar": "a grammar in llguidance's Lark, or in llama.cpp's GBNF",
}


def _refused(name: str, text: str, said: str) -> BadInputError:
    if said.startswith("panic"):
        return BadInputError(
            f"{name} {shown(text)}, at which llguidance itself fails ({said.splitlines()[0][:100]})",
            expected=_EXPECTED[name],
            remedy=f"write {name} in another way: fewer repeats inside repeats",
        )
    what = f"{name} {shown(text)}: {_of_regex(said) if name == 'regex' else said.strip()}"
    return BadInputError(what, expected=_EXPECTED[name], remedy=f"correct {name}")


def _of_regex(said: str) -> str:
    """What a library that saw the expression inside a grammar of its own says of the expression."""
    found = re.search(r"regex parse error:\n    .*\n    ( *)\^+\nerror: (.*)", said)
    if found:
        return f"{found[2]} at character {len(found[1]) + 1}"
    found = re.search(r"\(in regex\): (.*)", said)
    return found[1] if found else said.strip().splitlines()[0]
