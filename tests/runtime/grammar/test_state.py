"""Readings, endings and states, compared with Python's own regular expressions and JSON."""

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
from lopa.runtime.grammar.grammar_source import matcher_from_request, request_from_config
from lopa.runtime.grammar.state import GrammarState, initial_state
from lopa.runtime.grammar.vocabulary import Vocabulary

ROOM = 120


def initial(vocabulary: Vocabulary, remaining: int = ROOM, **grammar: Any) -> GrammarState:
    return initial_state(
        matcher_from_request(request_from_config(GenerationConfig(**grammar), 0), vocabulary), remaining
    )


def state_after(state: GrammarState, text: str, remaining: int = ROOM) -> GrammarState:
    for token in state.matcher.vocabulary.encode(text):
        remaining -= 1
        after = state.after(token, remaining)
        assert after is not None, text
        state = after
    return state


def test_allowed_tokens_can_still_match(vocabulary: Vocabulary) -> None:
    state = state_after(initial(vocabulary, regex="(ab|cd)+x?"), "ab")
    allowed = {vocabulary.texts[each] for each in np.flatnonzero(state.matcher.allowed)}
    assert {b"a", b"c", b"x"} <= allowed
    assert all(re.match(rb"(a|c|x|ab|cd|abx)", text) for text in allowed)
    assert state.matcher.may_end
    assert not state_after(state, "c").matcher.may_end


def test_end_is_allowed_or_forced_by_the_grammar(vocabulary: Vocabulary) -> None:
    state = initial(vocabulary, regex="ab?")
    assert state.after(0, ROOM) is None
    state = state_after(state, "a")
    assert state.forced() == ()
    ended = state.after(0, ROOM)
    assert ended is not None
    assert ended.ended
    assert ended.after(5, ROOM) is None
    assert state_after(state, "b").forced() == (0,)


@pytest.mark.parametrize("seed", range(2))
def test_any_sequence_of_tokens_ends_within_the_limit(vocabulary: Vocabulary, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        schema = random_schema(rng)
        try:
            state = initial(vocabulary, 60, json_schema=schema)
        except BadInputError as error:
            assert "max_new_tokens is 60" in str(error)  # noqa: PT017
            continue
        tokens: list[int] = []
        while not state.ended:
            allowed = [*np.flatnonzero(state.matcher.allowed).tolist(), *([0] if state.matcher.may_end else [])]
            tried = [*rng.sample(allowed, min(4, len(allowed))), state.first_ending_token(60 - len(tokens))]
            found = ((token, state.after(token, 59 - len(tokens))) for token in tried)
            token, after = next((token, after) for token, after in found if after is not None)
            tokens, state = [*tokens, token], after
        assert len(tokens) <= 60
        text = b"".join(vocabulary.texts[token] for token in tokens[:-1])
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_tokens_for_the_end_are_reserved(vocabulary: Vocabulary) -> None:
    state = state_after(initial(vocabulary, 9, regex="[a-f]+!"), "a", 9)
    remaining = 8
    while remaining > 2:
        remaining -= 1
        state = next(after for token in vocabulary.encode("b") if (after := state.after(token, remaining)))
    assert state.after(vocabulary.encode("b")[0], 1) is None
    assert state.first_ending_token(2) == vocabulary.encode("!")[0]


@pytest.mark.parametrize(("remaining", "fits"), [(4, True), (3, False)])
def test_grammar_longer_than_the_limit_is_rejected_at_the_start(
    vocabulary: Vocabulary, remaining: int, fits: bool
) -> None:
    regex = "#~#"  # no token has two of these characters
    assert vocabulary.fewest_tokens(b"#~#") == tuple(vocabulary.ids[each] for each in (b"#", b"~", b"#"))
    if fits:
        initial(vocabulary, remaining, regex=regex)
    else:
        with pytest.raises(BadInputError, match="4 tokens with its end-of-text; max_new_tokens is 3"):
            initial(vocabulary, remaining, regex=regex)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ({"regex": "(a"}, "unclosed group at character 1"),
        ({"regex": r"(\w|(.|x|b|.)|( *?| {0,1}|([a-f]|é|x)|(\w|b))|(?:(a|x|.))+?)*?"}, "llguidance failed on"),
        ({"regex": "a(?=b)"}, "look-around.* at character 2"),
        ({"grammar": 'start: "a" b'}, r"at 1\(12\)|at 1\(8\): unknown name"),
        ({"grammar": 'root ::= "a" |\n  ('}, "line 2"),
        ({"grammar": "start: <|mask|>"}, "unknown special token"),
        ({"json_schema": {"not": {}}}, 'Unimplemented keys: \\["not"\\]'),
        ({"json_schema": {"x-guidance": {"lenient": True}, "not": {}}}, 'Unimplemented keys: \\["not"\\]'),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 2}}, "minimum .5. is greater"),
        ({"json_schema": {"$ref": "http://127.0.0.1/x"}}, "a reference to a schema in the same document"),
    ],
)
def test_invalid_grammars_are_rejected_with_position_or_name(
    vocabulary: Vocabulary, grammar: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        initial(vocabulary, **grammar)


@pytest.mark.parametrize("seed", range(2))
def test_bytes_that_are_read_late_are_read_alike(vocabulary: Vocabulary, seed: int) -> None:
    rng = random.Random(seed)
    grammar = 'start: (TEXT | call)\nTEXT: /(?s:.*)/\ncall: opening "b"\nopening[lazy]: /(?s:.*)<a>/\n'
    late = early = initial(vocabulary, grammar=grammar)
    text = "".join(rng.choice(["x", "<", "a", ">", " 1", "<a>", "é"]) for _ in range(30)) + rng.choice(["", "<a>b"])
    for place, token in enumerate(vocabulary.encode(text)):
        early.matcher.bytes.is_accepting()  # reads at once
        late_after, early_after = (each.after(token, ROOM - place) for each in (late, early))
        assert (late_after is None) == (early_after is None)
        if late_after is None or early_after is None:
            break
        late, early = late_after, early_after
        assert late.ending == early.ending
        assert late.matcher.may_end == early.matcher.may_end
    assert "bytes" not in late.matcher.__dict__ or late.ending
    assert late.matcher.bytes.compute_bitmask() == early.matcher.bytes.compute_bitmask()
    assert late.matcher.bytes.is_accepting() == late.matcher.may_end
