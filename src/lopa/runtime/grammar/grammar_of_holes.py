"""The grammar of a request whose text has holes, from its options or from the holes' own expressions."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.grammar_matcher import GrammarMatcher
from lopa.runtime.grammar.grammar_source import GrammarRequest, request_from_config
from lopa.runtime.grammar.holes_grammar import HolesState, HolesText, state_of_expressions, state_of_whole_text
from lopa.runtime.text.encoded_holes import EncodedHoles
from lopa.runtime.text.text_with_holes import TextWithHoles

_MORE_POSITIONS = 256
"""Positions besides those of the text in a grammar's request, so that only a hole, not the request, is too short."""
Read = Callable[[GrammarRequest], GrammarMatcher]
"""Function that compiles a grammar and returns the matcher of an empty text."""
_ANY_TEXT = "(?s:.*)"
_ANY_GRAMMAR = f"start: /{_ANY_TEXT}/"
"""Grammar of a request whose holes have expressions of their own."""


def config_of_expressions(config: GenerationConfig, text: TextWithHoles) -> GenerationConfig:
    """Return `config` with a grammar if a hole of `text` has an expression, so that the options of grammars apply.

    Raises BadInputError if `config` has a grammar too.
    """
    if not any(hole.regex for hole in text.holes):
        return config
    if config.has_grammar:
        raise BadInputError(
            "expressions of holes, and a grammar of the whole text",
            expected="one of the two",
            remedy="remove one of the two",
        )
    return replace(config, grammar=_ANY_GRAMMAR)


def state_of_holes(config: GenerationConfig, holes: EncodedHoles, read: Read) -> HolesState:
    """Return the state of the grammar before the first hole. `read` compiles a grammar.

    A schema's text has the usual white space if the given text has, otherwise any. Raises BadInputError for an invalid
    grammar, for given text that it forbids, and for holes that cannot be filled.
    """
    sizes = tuple(end - start for start, end in holes.holes)
    text = HolesText(holes.given_ids, sizes)
    if holes.regexes:
        requests = [
            GrammarRequest("regex", regex or _ANY_TEXT, size + _MORE_POSITIONS)
            for regex, size in zip(holes.regexes, sizes, strict=True)
        ]
        return state_of_expressions([read(each) for each in requests], text)
    request = request_from_config(config, len(holes.ids) + _MORE_POSITIONS)
    if request.option == "json_schema":
        with suppress(BadInputError):
            return _state_of_request(read(request), text)
        request = replace(request, text=_with_any_white_space(request.text))
    return _state_of_request(read(request), text)


def _state_of_request(matcher: GrammarMatcher, text: HolesText) -> HolesState:
    # The exact endings of an expression are those of a whole text.
    return state_of_whole_text(replace(matcher, expression=None), text)


def _with_any_white_space(schema: str) -> str:
    """Return a schema whose texts may have any white space, as the given text has, unless it says otherwise."""
    made = json.loads(schema)
    if not isinstance(made, dict):
        return schema
    style = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}
    return json.dumps({**made, "x-guidance": {**style, **made.get("x-guidance", {})}})
