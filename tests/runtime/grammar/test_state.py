"""Readings, endings and states, against Python's own regular expressions and JSON."""

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from tools.random_schemas import random_schema

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.source import reading_from_request, request_from_config
from lopa.runtime.grammar.state import GrammarState, state_of_nothing
from lopa.runtime.grammar.vocabulary import Vocabulary

ROOM = 120


def begun(vocabulary: Vocabulary, room: int = ROOM, **grammar: Any) -> GrammarState:
    return state_of_nothing(reading_from_request(request_from_config(GenerationConfig(**grammar), 0), vocabulary), room)


def behind(state: GrammarState, text: str, room: int = ROOM) -> GrammarState:
    for token in state.reading.vocabulary.encode(text):
        room -= 1
        after = state.after(token, room)
        assert after is not None, text
        state = after
    return state


def test_what_is_allowed_is_what_can_still_match(vocabulary: Vocabulary) -> None:
    state = behind(begun(vocabulary, regex="(ab|cd)+x?"), "ab")
    allowed = {vocabulary.texts[each] for each in np.flatnonzero(state.reading.allowed)}
    assert {b"a", b"c", b"x"} <= allowed
    assert all(re.match(rb"(a|c|x|ab|cd|abx)", text) for text in allowed)
    assert state.reading.may_end
    assert not behind(state, "c").reading.may_end


def test_special_tokens_are_never_allowed(vocabulary: Vocabulary) -> None:
    state = begun(vocabulary, regex="(?s:.*)")
    assert not state.reading.allowed[[0, 1, 2]].any()
    assert state.after(2, ROOM) is None


def test_the_end_is_allowed_where_the_grammar_may_end_and_forced_where_it_must(vocabulary: Vocabulary) -> None:
    state = begun(vocabulary, regex="ab?")
    assert state.after(0, ROOM) is None
    state = behind(state, "a")
    assert state.forced() == ()
    ended = state.after(0, ROOM)
    assert ended is not None
    assert ended.ended
    assert ended.after(5, ROOM) is None
    assert behind(state, "b").forced() == (0,)


def test_names_of_a_schema_are_forced_as_the_tokenizer_writes_them(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "integer"}}, "required": ["name"]}
    forced = begun(vocabulary, json_schema={**schema, "additionalProperties": False}).forced()
    assert forced == tuple(vocabulary.encode('{"name": '))[: len(forced)]
    assert len(forced) >= 3


@pytest.mark.parametrize("seed", range(6))
def test_any_walk_within_the_room_ends_in_it_and_is_valid(vocabulary: Vocabulary, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        schema = random_schema(rng)
        try:
            state = begun(vocabulary, 60, json_schema=schema)
        except BadInputError as error:
            assert "max_new_tokens 60" in str(error)  # noqa: PT017
            continue
        tokens: list[int] = []
        while not state.ended:
            allowed = [*np.flatnonzero(state.reading.allowed).tolist(), *([0] if state.reading.may_end else [])]
            tried = [*rng.sample(allowed, min(4, len(allowed))), state.way_out(60 - len(tokens))]
            found = ((token, state.after(token, 59 - len(tokens))) for token in tried)
            token, after = next((token, after) for token, after in found if after is not None)
            tokens, state = [*tokens, token], after
        assert len(tokens) <= 60
        text = b"".join(vocabulary.texts[token] for token in tokens[:-1])
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_a_pattern_that_stands_anywhere_is_found(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": 'q"uv+w'}}, "required": ["a"]}
    assert b'q\\"uvw' in begun(vocabulary, json_schema=schema).ending
    assert b"quvw" in begun(vocabulary, regex=".*quv+w.*").ending


def test_room_for_the_end_is_kept_to_the_last_token(vocabulary: Vocabulary) -> None:
    state = behind(begun(vocabulary, 9, regex="[a-f]+!"), "a", 9)
    room = 8
    while room > 2:
        room -= 1
        state = next(after for token in vocabulary.encode("b") if (after := state.after(token, room)))
    assert state.after(vocabulary.encode("b")[0], 1) is None
    assert state.way_out(2) == vocabulary.encode("!")[0]


@pytest.mark.parametrize(("room", "fits"), [(4, True), (3, False)])
def test_a_grammar_that_cannot_end_in_time_is_refused_at_the_start(
    vocabulary: Vocabulary, room: int, fits: bool
) -> None:
    regex = "#~#"  # no token has two of these characters
    assert vocabulary.fewest(b"#~#") == tuple(vocabulary.ids[each] for each in (b"#", b"~", b"#"))
    if fits:
        begun(vocabulary, room, regex=regex)
    else:
        with pytest.raises(BadInputError, match="4 tokens, its end-of-text included, with max_new_tokens 3"):
            begun(vocabulary, room, regex=regex)


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ({"regex": "(a"}, "unclosed group at character 1"),
        ({"regex": r"(\w|(.|x|b|.)|( *?| {0,1}|([a-f]|é|x)|(\w|b))|(?:(a|x|.))+?)*?"}, "llguidance itself fails"),
        ({"regex": "a(?=b)"}, "look-around.* at character 2"),
        ({"grammar": 'start: "a" b'}, r"at 1\(12\)|at 1\(8\): unknown name"),
        ({"grammar": 'root ::= "a" |\n  ('}, "line 2"),
        ({"grammar": "start: <|mask|>"}, "unknown special token"),
        ({"json_schema": {"not": {}}}, 'Unimplemented keys: \\["not"\\]'),
        ({"json_schema": {"x-guidance": {"lenient": True}, "not": {}}}, 'Unimplemented keys: \\["not"\\]'),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 2}}, "minimum .5. is greater"),
        ({"json_schema": {"$ref": "http://127.0.0.1/x"}}, "not present"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place_or_name(
    vocabulary: Vocabulary, grammar: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInputError, match=said):
        begun(vocabulary, **grammar)
