"""Whole decodes that edit: random statistics compared with a plain version of the rule, then a model with experts."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.params import params_of
from tests.runtime.decoding.test_remask_decodes import END, MASK, OPTIONS, PROMPT, decoding_of, random_rows

from lopa.cli.files.step_log import record_from_step
from lopa.runtime import Decoder, DoneEvent, TextEvent
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.state.layout import max_rows
from lopa.runtime.strategy import Candidates, EditView
from lopa.runtime.strategy.strategies import other_token_above

options = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["d2f", "lopa", "threshold", "eb", "top_n", "credit"]),
        "skip_threshold": st.sampled_from([0.0, 0.3, 0.6, 0.9]),
        "editing_threshold": st.sampled_from([0.0, 0.2, 0.5, 0.9]) | st.floats(0, 0.99),
        "editing_limit": st.sampled_from([None, 0, 1, 3]),
        **OPTIONS,
    }
)


@given(given_options=options, ends=st.sampled_from([0.0, 0.05, 0.3]), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_random_decodes_follow_the_rule_and_end(given_options: dict[str, Any], ends: float, seed: int) -> None:
    more: dict[str, Any] = {"lopa": {"branches": 3}, "eb": {"branches": 2, "gamma": 1.0}}
    params = params_of(**given_options, **more.get(given_options["strategy"], {}))
    rng = np.random.default_rng(seed)
    decoding = decoding_of(params, 0)
    streamed: list[int] = []
    max_window, max_sampled = max_rows(PROMPT, params)
    while decoding.stop_reason is None:
        blocks = len(decoding.anchor.blocks) - 1
        packed = decoding.open_round()
        assert max(packed.lengths) <= max_window
        assert max(packed.branch_columns) <= max_sampled
        rows = random_rows(rng, packed, ends=ends)
        step = decoding.finish_round(packed, rows, None)
        # A round unmasks a position, or begins with nothing masked in the first open block.
        assert decoding.steps <= params.positions + blocks * (params.editing_limit + 1), "it does not end"

        winner, edited = step.branches[step.winner], step.edited
        first = packed.editable_columns(step.winner).start
        expected = {}
        for block in winner.active:
            for position in range(max(block.start, PROMPT), block.end):
                if not winner.unmasked[position]:
                    continue
                column = first + packed.editable[step.winner].tolist().index(position)
                token = int(rows.topk_ids[column, 0])
                p = np.exp(rows.topk_logprobs[column, 0])
                if token != winner.tokens[position] and p > np.float32(params.editing_threshold):
                    expected[position] = (int(winner.tokens[position]), token)
        pairs = zip(edited.before.tolist(), edited.tokens.tolist(), strict=True)
        assert dict(zip(edited.positions.tolist(), pairs, strict=True)) == expected
        written = np.concatenate([edited.positions, step.unmasked.positions])
        after = decoding.anchor
        kept = np.setdiff1d(np.flatnonzero(winner.unmasked), written)
        np.testing.assert_array_equal(after.tokens[kept], winner.tokens[kept])
        assert after.unmasked[written].all()
        assert MASK not in edited.tokens
        text = slice(PROMPT, len(winner.tokens))
        assert after.lookahead is not None or after.ended == (
            params.stop_at_eos and bool((after.tokens[text][after.unmasked[text]] == END).any())
        )
        committed = decoding.answer.committed.tolist()
        assert committed[: len(streamed)] == streamed
        streamed = committed
    assert len(streamed) <= params.positions
    if not params.stop_at_eos:
        assert len(streamed) == params.positions
    logprobs = decoding.answer.logprobs
    assert logprobs is not None
    assert np.isfinite(logprobs[: len(streamed)]).all()


def test_rows_that_predict_the_next_position_are_rejected(decoder: Decoder) -> None:
    params = params_of(editing_threshold=0.5)
    with pytest.raises(BadInputError, match="rows predict the next position"):
        decoding_of(params, 1)
    with pytest.raises(BadInputError, match="rows predict the next position"):
        decoder.generate("a", editing_threshold=0.5)
    assert decoder.generate("a", editing_threshold=1.0, max_new_tokens=4).tokens


@pytest.fixture(scope="module")
def editor(family_bundle: Callable[..., Path]) -> Iterator[Decoder]:
    with Decoder.open(family_bundle("llada2"), ["cpu"], threads=1) as opened:
        yield opened


PROMPTS = ("Ann has 3 apples.", "Q: 2+2?\nAnswer:", "The", "Write")
EAGER: dict[str, Any] = {"block_size": 8, "skip_threshold": 0.6, "editing_threshold": 0.3, "max_new_tokens": 29}
CONFIGS: list[dict[str, Any]] = [
    {},
    {"editing_limit": 2, "stop_at_eos": False},
    {"strategy": "lopa", "branches": 3, "deduplicate_rows": False},
    {"strategy": "lopa", "branches": 4, "block_add_threshold": 0.3, "deduplicate_rows": True},
    {"strategy": "d2f", "block_add_threshold": 0.3, "temperature": 0.7, "logprobs": True},
    {"strategy": "vanilla", "speculative": True, "branches": 3},
    {"regex": "[a-z ]{5,20}"},
]


def test_streamed_text_is_final(editor: Decoder) -> None:
    for own in CONFIGS:
        edits = 0
        for prompt in PROMPTS:
            steps: list[Step] = []
            events = list(editor.stream(prompt, drafts=True, on_step=steps.append, **(EAGER | own)))
            text = "".join(event.text for event in events if isinstance(event, TextEvent))
            last = events[-1]
            assert isinstance(last, DoneEvent)
            assert text == last.result.text
            edits += sum(len(step.edited) for step in steps)
            records = [record_from_step(step) for step in steps]
            assert sum(len(each.get("edited", [])) for each in records) == sum(len(step.edited) for step in steps)
            if own.get("logprobs"):
                assert last.result.logprobs is not None
                assert np.isfinite(last.result.logprobs).all()
        assert edits > 10


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "answer": {"enum": ["yes", "no", "maybe"]}},
    "required": ["name", "answer"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "own", [{}, {"strategy": "lopa", "branches": 3}, {"strategy": "d2f", "block_add_threshold": 0.3}]
)
def test_edits_keep_an_answer_valid(own: dict[str, Any], editor: Decoder) -> None:
    """Every prefix of final text is one that the grammar allows, and edits change text that the grammar has read."""
    pytest.importorskip("llguidance")
    read = 0
    for prompt in PROMPTS:
        steps: list[Step] = []
        config = {**EAGER, **own, "max_new_tokens": 48}
        *_, done = editor.stream(prompt, editor.config(json_schema=SCHEMA, **config), on_step=steps.append)
        assert isinstance(done, DoneEvent)
        assert set(json.loads(done.result.text)) == {"name", "answer"}
        found = editor.stream(prompt, editor.config(regex="[a-z]{2,4}( [a-z]{2,4}){3}", **config), on_step=steps.append)
        *_, done = found
        assert isinstance(done, DoneEvent)
        assert re.fullmatch("[a-z]{2,4}( [a-z]{2,4}){3}", done.result.text)
        for step in steps:
            anchor = step.branches[step.winner]
            assert anchor.grammar is not None
            read += int((step.edited.positions < anchor.layout.prompt + anchor.grammar.length).sum())
    assert read > 0


def test_an_edit_needs_another_token_and_more_than_the_threshold() -> None:
    probabilities = np.array([0.5, np.nextafter(np.float32(0.5), np.float32(1)), 0.9], np.float32)
    view = EditView(np.array([7, 7, 7]), Candidates(np.array([8, 8, 7]), probabilities, probabilities))
    assert other_token_above(view, params_of(editing_threshold=0.5)).tolist() == [False, True, False]
