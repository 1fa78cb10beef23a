"""A grammar can name an added token such as <tool_call>, which differs from text that spells it."""

from pathlib import Path

import numpy as np
import pytest
from tests.chat_bundles import FIRST_FREE_ID, with_added_tokens
from tests.runtime.text.chat_templates import TEMPLATES

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.byte_order import SYMBOLS
from lopa.runtime.grammar.grammar_source import matcher_from_request, request_from_config
from lopa.runtime.grammar.state import GrammarState, initial_state
from lopa.runtime.grammar.vocabulary import Vocabulary, vocabulary_from_tokenizer
from lopa.runtime.text.tokenizer import Tokenizer

ADDED = ["<unused>", "<tool_call>", "</tool_call>", "<think>", "</think>", *(f"<more_{number}>" for number in range(9))]
CALLS = """start: TEXT call ("\\n" call)*
TEXT: /(.|\\n)*/
call: <tool_call> "\\n" OBJECT "\\n" </tool_call>
OBJECT: /\\{"n": [0-9]+\\}/
"""


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny bundle with added tokens that are not special, and Qwen's template, which writes some."""
    return with_added_tokens(tiny_bundle, tmp_path_factory.mktemp("added") / "bundle", TEMPLATES["qwen"], ADDED)


@pytest.fixture(scope="module")
def marked(bundle: Path) -> Vocabulary:
    opened = Bundle.open(bundle)
    return vocabulary_from_tokenizer(Tokenizer.open(opened), opened.manifest)


def state_after_text(grammar: str, vocabulary: Vocabulary, remaining: int = 60) -> GrammarState:
    return initial_state(
        matcher_from_request(request_from_config(GenerationConfig(grammar=grammar), 0), vocabulary), remaining
    )


def token(name: str) -> int:
    return FIRST_FREE_ID + ADDED.index(name)


def test_template_markup_comes_first_and_has_a_symbol(marked: Vocabulary) -> None:
    assert list(marked.added.values())[:4] == [b"</tool_call>", b"</think>", b"<tool_call>", b"<think>"]
    assert len(marked.added) == len(ADDED) > len(SYMBOLS)
    assert [marked.texts[token(name)] for name in ADDED] == [name.encode() for name in ADDED]
    symbols = [marked.symbols[each] for each in marked.added]
    assert symbols == [*(bytes([each]) for each in SYMBOLS), b"", b""]
    assert marked.writes_all_bytes
    for written in (marked.fewest_tokens(b"<tool_call>"), marked.tokenizer_tokens(b"<tool_call>")):
        assert written is not None
        assert token("<tool_call>") not in written
        assert b"".join(marked.texts[each] for each in written) == b"<tool_call>"
    assert marked.fewest_tokens(b"a" + symbols[2]) == (*marked.encode("a"), token("<tool_call>"))
    assert marked.tokenizer_tokens(b"<unused>") is None  # the tokenizer would write the token instead of the text


def test_names_are_tokens_and_literals_are_text(marked: Vocabulary) -> None:
    named, spelt = (
        state_after_text('start: <tool_call> "x"', marked),
        state_after_text('start: "<tool_call>" "x"', marked),
    )
    assert np.flatnonzero(named.matcher.allowed).tolist() == [token("<tool_call>")]
    assert named.matcher.allows(token("<tool_call>"))
    assert not spelt.matcher.allows(token("<tool_call>"))
    for each in marked.encode("<tool_call>"):
        assert named.after(each, 50) is None
        following = spelt.after(each, 50)
        assert following is not None
        spelt = following
    behind = named.after(token("<tool_call>"), 50)
    assert behind is not None
    assert behind.forced() == spelt.forced() == tuple(marked.encode("x"))


def test_call_after_free_text_ends_within_the_remaining_tokens(marked: Vocabulary) -> None:
    """Check any number of remaining tokens: an open call can be closed, and a required call can be written."""
    rng = np.random.default_rng(0)
    for remaining in (13, 14, 20, 40):
        for _ in range(10):
            state, written = state_after_text(CALLS, marked, remaining), list[int]()
            for left in range(remaining - 1, -1, -1):
                forced = state.forced()
                if forced:
                    chosen = forced[0]
                else:
                    allowed = np.flatnonzero(state.matcher.allowed)
                    chosen = int(rng.choice(allowed))
                following = state.after(chosen, left)
                if following is None:
                    chosen = state.first_ending_token(left + 1)
                    following = state.after(chosen, left)
                assert following is not None
                state = following
                written.append(chosen)
                if state.ended:
                    break
            assert state.ended
            text = b"".join(marked.texts[each] for each in written)
            assert token("<tool_call>") in written
            assert written.count(token("<tool_call>")) == written.count(token("</tool_call>"))
            assert text.endswith(b"}\n</tool_call>")


def test_required_length_of_a_call_is_reported(marked: Vocabulary) -> None:
    with pytest.raises(BadInputError, match="takes 13 tokens") as caught:
        state_after_text(CALLS, marked, 6)
    need = int(str(caught.value.remedy).split()[3])
    assert state_after_text(CALLS, marked, need)
