"""A budget of tokens for reasoning: exact in tokens, for marks as text and as tokens, in every decode."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.chat_bundles import FIRST_FREE_ID, HERMES, MARKS, with_added_tokens

from lopa.runtime import Decoder
from lopa.runtime.grammar.grammar_source import GrammarRequest, any_text_request, matcher_from_request
from lopa.runtime.grammar.reasoning_budget import BudgetedState
from lopa.runtime.grammar.state import initial_state
from lopa.runtime.grammar.vocabulary import Vocabulary, vocabulary_from_tokenizer

pytest.importorskip("llguidance")
_OPEN = "Question: Ivy has 3 shells and finds 4 more. How many?\nAnswer: <think>\n"
_END = FIRST_FREE_ID + MARKS.index("</think>")


@pytest.fixture(scope="module")
def marked(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    """Yield a decoder whose tokenizer has tokens for the marks."""
    copy = with_added_tokens(tiny_bundle, tmp_path_factory.mktemp("budget") / "bundle", HERMES)
    with Decoder.open(copy, threads=1) as opened:
        yield opened


def _vocabulary(decoder: Decoder) -> Vocabulary:
    return vocabulary_from_tokenizer(decoder.tokenizer, decoder.bundle.manifest)


def _ids(decoder: Decoder, text: str) -> list[int]:
    """Return the tokens of `text`, marks included."""
    return decoder.tokenizer.encode(text, add_bos=False, special_tokens=True)


def _state(decoder: Decoder, budget: int, *, is_open: bool) -> BudgetedState:
    vocabulary = _vocabulary(decoder)
    matcher = matcher_from_request(any_text_request(64, vocabulary), vocabulary)
    return BudgetedState(initial_state(matcher, 64), budget, is_open)


def _after(state: BudgetedState, ids: list[int]) -> BudgetedState | None:
    found: BudgetedState | None = state
    for token in ids:
        found = None if found is None else found.after(token, 50)
    return found


@pytest.mark.parametrize("kind", ["decoder", "marked"])
@pytest.mark.parametrize("budget", [0, 5])
@pytest.mark.parametrize("options", [{"branches": 4}, {"temperature": 1.0, "seed": 4}])
def test_reasoning_ends_after_the_budget(
    kind: str, budget: int, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    opened: Decoder = request.getfixturevalue(kind)
    prompt = opened.tokenizer.encode(_OPEN, add_bos=True, special_tokens=True)
    result = opened.generate(prompt, reasoning_budget=budget, max_new_tokens=48, **options)
    ids = list(result.token_ids)
    before = next(n for n in range(len(ids) + 1) if "</think>" in opened.tokenizer.decode(ids[:n]))
    mark = 1 if kind == "marked" else len(_vocabulary(opened).fewest_tokens(b"</think>") or ())
    assert before <= budget + mark
    assert result.stop_reason in ("eos", "length")


@pytest.mark.parametrize("kind", ["decoder", "marked"])
def test_only_the_mark_may_follow_at_the_limit(kind: str, request: pytest.FixtureRequest) -> None:
    opened: Decoder = request.getfixturevalue(kind)
    vocabulary = _vocabulary(opened)
    words = _ids(opened, "1 + 2 = 3")
    state = _after(_state(opened, len(words), is_open=True), words[:-1])
    assert state is not None
    assert state.allows(words[-1])
    assert state.forced() == ()
    limit = state.after(words[-1], 50)
    assert limit is not None
    allowed = set(np.flatnonzero(limit.allowed()).tolist())
    beginnings = {n for n, text in enumerate(vocabulary.symbols) if text and b"</think>".startswith(text)}
    whole = {_END} if kind == "marked" else beginnings
    assert allowed == whole
    assert {token for token in range(vocabulary.size) if limit.allows(token)} == whole
    assert limit.first_ending_token(50) == limit.forced()[0]
    assert limit.forced()[0] in whole
    for token in limit.forced():
        limit = limit.after(token, 50)
        assert limit is not None
    assert limit.forced() == ()
    assert limit.allows(words[0])


@pytest.mark.parametrize("kind", ["decoder", "marked"])
def test_the_answer_may_open_its_reasoning(kind: str, request: pytest.FixtureRequest) -> None:
    opened: Decoder = request.getfixturevalue(kind)
    begun = _ids(opened, "<think>1 + 2")
    limit = _after(_state(opened, len(begun), is_open=False), begun)
    assert limit is not None
    assert limit.forced()
    other = _ids(opened, "1 + 2 = 3")
    free = _after(_state(opened, 2, is_open=False), other)
    assert free is not None
    assert free.forced() == ()


_CALLS = r"""start: thought "<call>\n{\"a\": " NUMBER (", \"b\": " NUMBER)? "}\n</call>"
thought[lazy]: /(?s:.*)<\/think>/
NUMBER: /[1-9][0-9]{0,5}/
"""


@pytest.mark.parametrize("remaining", [27, 30, 48])
def test_an_ending_always_follows_whatever_the_model_wants(decoder: Decoder, remaining: int) -> None:
    """Write tokens of random texts, calls and reasoning, and the state's own token where none is possible."""
    vocabulary = _vocabulary(decoder)
    request = GrammarRequest("grammar", _CALLS, remaining)
    matcher = matcher_from_request(request, vocabulary)
    wanted = [
        _ids(decoder, text) for text in ("</th", "</think>", "<call>\n{", '"b": 123, 45', "}\n</call>", "So 1 + 2")
    ]
    for seed in range(6):
        rng = np.random.default_rng([remaining, seed])
        state = BudgetedState(initial_state(matcher, remaining), int(rng.integers(remaining)), is_open=True)
        left = remaining
        while not state.ended:
            left -= 1
            assert left >= 0
            after: BudgetedState | None = None
            for number in rng.permutation(len(wanted))[:3]:
                token = int(rng.choice(wanted[number]))
                after = after or (state.after(token, left) if state.allows(token) else None)
            after = after or state.after(state.first_ending_token(left + 1), left)
            assert after is not None
            state = after


@pytest.mark.parametrize("remaining", [28, 40])
def test_a_budget_fits_into_the_room_of_the_grammar(decoder: Decoder, remaining: int) -> None:
    for budget in (0, 3, remaining // 2, remaining - 5):
        result = decoder.generate(_OPEN, reasoning_budget=budget, max_new_tokens=remaining, grammar=_CALLS)
        assert result.text.endswith("</call>")
