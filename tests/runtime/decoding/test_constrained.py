"""Allowed candidates, compared with a plain version of the rule."""

import numpy as np
import pytest
from tests.params import params_of

from lopa.runtime.contract import TOP_K
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.constrained import MAX_REJECTED, allowed_row
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.grammar_source import matcher_from_request, request_from_config
from lopa.runtime.grammar.state import GrammarState, initial_state
from lopa.runtime.grammar.vocabulary import Vocabulary

CONFIG = GenerationConfig(regex="[a-f ]+!")
PLAN = params_of(CONFIG)


@pytest.fixture
def state(vocabulary: Vocabulary) -> GrammarState:
    return initial_state(matcher_from_request(request_from_config(CONFIG, 0), vocabulary), 20)


def row(rng: np.random.Generator, ids: np.ndarray, logits: np.ndarray | None = None) -> RowStatistics:
    logprobs = -np.sort(rng.exponential(2.0, TOP_K)).astype(np.float32)
    return RowStatistics(ids.astype(np.int64), logprobs, np.array(1.5, np.float32), logits)


def test_allowed_candidates_come_first_in_their_order(state: GrammarState) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        ids = rng.permutation(1024)[:TOP_K]
        ids[rng.integers(TOP_K)] = state.matcher.vocabulary.ids[b"a"]
        given = row(rng, ids)
        found = allowed_row(given, state, 20, PLAN)
        good = [place for place in range(TOP_K) if state.matcher.allowed[ids[place]]]
        assert found.topk_ids[: len(good)].tolist() == ids[good].tolist()
        assert np.array_equal(found.topk_logprobs[: len(good)], given.topk_logprobs[good])
        assert np.isneginf(found.topk_logprobs[len(good) :]).all()


def test_the_best_allowed_token_of_logits(state: GrammarState) -> None:
    rng = np.random.default_rng(1)
    may = state.matcher.allowed
    for _ in range(20):
        logits = rng.normal(size=1024).astype(np.float32)
        logits[~may] += 50
        found = allowed_row(row(rng, np.argsort(-logits)[:TOP_K], logits), state, 20, PLAN)
        best = np.flatnonzero(may)[np.argsort(-logits[may], kind="stable")[:TOP_K]]
        assert found.topk_ids.tolist() == best.tolist()
        wide = logits.astype(np.float64)
        expected = wide[best] - np.log(np.exp(wide).sum())
        np.testing.assert_allclose(found.topk_logprobs, expected, rtol=1e-5)


def test_a_piece_of_a_candidate_or_the_shortest_ending(vocabulary: Vocabulary, state: GrammarState) -> None:
    rng = np.random.default_rng(2)
    refused = [each for each, text in enumerate(vocabulary.texts) if text and not set(text) & set(b"abcdef !")]
    ids = rng.permutation(refused)[:TOP_K]
    assert allowed_row(row(rng, ids), state, 20, PLAN).topk_ids[0] == state.first_ending_token(20)
    longer = next(
        each
        for each, text in enumerate(vocabulary.texts)
        if text[:1] in b"abcdef" and len(text) > 1 and not state.matcher.allowed[each]
    )
    ids[3] = longer
    token = int(allowed_row(row(rng, ids), state, 20, PLAN).topk_ids[0])
    text, whole = vocabulary.texts[token], vocabulary.texts[longer]
    assert whole.startswith(text)
    pieces = [whole[:length] for length in range(len(whole), 0, -1)]
    assert text == next(
        piece for piece in pieces if piece in vocabulary.ids and state.matcher.allowed[vocabulary.ids[piece]]
    )


def test_tokens_that_do_not_fit_are_rejected_until_the_shortest_ending(state: GrammarState) -> None:
    rng = np.random.default_rng(3)
    refused: set[int] = set()
    given = row(rng, np.flatnonzero(state.matcher.allowed)[:TOP_K])
    for _ in range(MAX_REJECTED + 2):
        token = int(allowed_row(given, state, 20, PLAN, refused).topk_ids[0])
        if token == state.first_ending_token(20):
            break
        assert token not in refused
        refused.add(token)
    assert token == state.first_ending_token(20)
