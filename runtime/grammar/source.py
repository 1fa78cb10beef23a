"""From what a request asks for to a grammar in the library's own form: one of three options, checked and named.

Knows the options' values, no vocabulary.
"""

import re
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import said_by
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.library import library
from lopa.runtime.grammar.reading import Reading, reading_of_nothing
from lopa.runtime.grammar.vocabulary import Vocabulary

_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is written where its schema does not say otherwise: in one way alone, so that much of it is forced."""
_STRICT = {"lenient": False, "coerce_one_of": False}
"""What a schema may not ask for: features that it names and the library lacks, ignored."""


def reading_from_config(config: GenerationConfig, vocabulary: Vocabulary) -> Reading | None:
    """The reading of an empty answer by the grammar that `config` asks for; None where it asks for none.

    Raises BadInputError for a grammar that does not parse, with the place, and for a schema with features that the
    library lacks, which it names.
    """
    for name, made in _MADE.items():
        text = getattr(config, name)
        if text is not None:
            try:
                return reading_of_nothing(vocabulary, made(text))
            except BadInputError:
                raise
            except Exception as error:  # whatever a parser raises at somebody's text
                raise _refused(name, text, said_by(error)) from error
    return None


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
_EXPECTED = {
    "json_schema": "a JSON schema of the features that llguidance has (docs/grammars.md)",
    "regex": "a regular expression in the syntax of Rust's regex crate: no look-around, no references back",
    "grammar": "a grammar in llguidance's Lark, or in llama.cpp's GBNF",
}


def _refused(name: str, text: str, said: str) -> BadInputError:
    what = f"{name} {shown(text)}"
    if name == "regex":
        what = f"{what}: {_of_regex(said)}"
    else:
        what = f"{what}: {said.strip()}"
    return BadInputError(what, expected=_EXPECTED[name], remedy=f"correct {name}")


def _of_regex(said: str) -> str:
    """What a library that saw the expression inside a grammar of its own says of the expression."""
    found = re.search(r"regex parse error:\n    .*\n    ( *)\^+\nerror: (.*)", said)
    if found:
        return f"{found[2]} at character {len(found[1]) + 1}"
    found = re.search(r'\(in regex\): (.*)', said)
    return found[1] if found else said.strip().splitlines()[0]


def schema_of_any_object() -> dict[str, Any]:
    """The schema of OpenAI's json_object: an object with whatever in it."""
    return {"type": "object"}
