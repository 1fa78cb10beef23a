"""Whole decodes that remask: random statistics compared with a plain version of the rule, then the tiny model."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import Block, Branch
from lopa.runtime.state.layout import max_rows
from lopa.runtime.state.packed_rows import PackedRows

MASK, END, VOCABULARY, PROMPT = 2, 0, 40, 5
NO_DEVICE: Any = SimpleNamespace(device="none", commit=lambda *_: None, shorten=lambda *_: None)


def decoding_of(params: DecodingParams, shift: int) -> LoneDecode:
    manifest: Any = SimpleNamespace(
        dimensions=SimpleNamespace(vocab_size=VOCABULARY),
        prediction_shift=shift,
        special_tokens=SimpleNamespace(mask=MASK, ends=(END,), expand=None),
    )
    decoding = LoneDecode(NO_DEVICE, np.arange(10, 10 + PROMPT), params, manifest)
    decoding.forward_is_given()
    return decoding


def random_rows(rng: np.random.Generator, packed: PackedRows, *, ends: float) -> RowStatistics:
    """Return random statistics [C]: some best tokens are an end of text, and most are either certain or not."""
    shape = packed.column_positions.shape
    ids = rng.permuted(np.broadcast_to(np.arange(3, VOCABULARY), (*shape, VOCABULARY - 3)), axis=-1)[..., :8].copy()
    ids[..., 0] = np.where(rng.random(shape) < ends, END, ids[..., 0])
    logits = rng.normal(0, 1, (*shape, 8)) + np.where(np.arange(8) == 0, rng.choice([0, 3, 8], shape)[..., None], 0)
    # In half of the cases the verified token is among the candidates.
    known = np.log(rng.random((*shape, 8)))
    logits = np.where(rng.random(shape)[..., None] < 0.5, np.sort(known)[..., ::-1], -np.sort(-logits))
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    entropy = -(np.exp(logprobs) * logprobs).sum(axis=-1)
    return RowStatistics(ids, logprobs.astype(np.float32), entropy.astype(np.float32))


def with_tokens_known(
    rng: np.random.Generator, rows: RowStatistics, packed: PackedRows, anchor: Branch
) -> RowStatistics:
    """Put the verified token among the candidates of shadow rows, at a random place, in four of five cases."""
    for column, position in enumerate(packed.remaskable, start=packed.remaskable_columns.start):
        if rng.random() < 0.8:
            rows.topk_ids[column] = np.where(
                rows.topk_ids[column] == anchor.tokens[position], 39, rows.topk_ids[column]
            )
            rows.topk_ids[column, int(rng.integers(8))] = anchor.tokens[position]
    return rows


OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "block_size": st.sampled_from([4, 8, 16]),
    "max_new_tokens": st.integers(1, 40),
    "alignment": st.sampled_from(["prompt", "absolute"]),
    "attention": st.sampled_from(["full", "block_causal"]),
    "block_add_threshold": st.sampled_from([0.0, 0.3, 1.0]),
    "stop_at_eos": st.booleans(),
    "logprobs": st.just(True),
    "sub_block": st.sampled_from([None, 3]),
}
"""Options of random decodes, beside their strategy and its thresholds."""
options = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["d2f", "lopa", "threshold", "wino", "eb"]),
        "skip_threshold": st.sampled_from([0.0, 0.3, 0.6, 0.9]) | st.floats(0, 1),
        "remask_threshold": st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]) | st.floats(0, 1),
        "remask_limit": st.sampled_from([None, 0, 3, 10**6]),
        "drop_after_eos": st.booleans(),
        **OPTIONS,
    }
)


@given(
    given_options=options,
    shift=st.integers(0, 1),
    ends=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
def test_random_decodes_follow_the_rule_and_end(
    given_options: dict[str, Any], shift: int, ends: float, seed: int
) -> None:
    more: dict[str, Any] = {"lopa": {"branches": 3}, "eb": {"branches": 2, "gamma": 1.0}}
    params = params_of(**given_options, **more.get(given_options["strategy"], {}))
    rng = np.random.default_rng(seed)
    decoding = decoding_of(params, shift)
    limit = given_options["max_new_tokens" if given_options["remask_limit"] is None else "remask_limit"]
    before: dict[int, int] = {}
    total = 0
    logprob_of: dict[int, float] = {}
    streamed: list[int] = []
    max_window, max_asked = max_rows(PROMPT, params)
    while decoding.stop_reason is None:
        anchor = decoding.anchor
        packed = decoding.open_round()
        assert max(packed.lengths) <= max_window
        assert max(packed.branch_columns) <= max_asked + 1
        rows = with_tokens_known(rng, random_rows(rng, packed, ends=ends), packed, anchor)
        step = decoding.finish_round(packed, rows, None)
        # One round per position and per block is the limit, however often positions are remasked.
        assert decoding.steps <= params.positions + len(anchor.blocks) - 1, "it does not end"

        winner = step.branches[step.winner]
        ahead = [] if winner.lookahead is None else [winner.lookahead.position]
        written = [*step.unmasked.positions.tolist(), *ahead]

        end = len(decoding.anchor.tokens) if params.drop_after_eos else 10**6
        stays = [position for position in written if position < end]

        def in_block(block: Block, stays: list[int] = stays) -> int:
            return sum(block.start <= position < block.end for position in stays)

        assert params.remask_threshold > 0 or not len(packed.remaskable)
        expected = []
        first = packed.remaskable_columns.start
        for block in anchor.active:
            last = before.get(block.start, 30)
            accepted = in_block(block)
            remaskable = {}
            for position in range(max(block.start, PROMPT), block.end):
                is_end = params.stop_at_eos and anchor.tokens[position] == END
                may = params.remask_threshold > 0 and last > 1 and total < limit
                if anchor.unmasked[position] and not is_end and may:
                    column = first + packed.remaskable.tolist().index(position)
                    found = np.flatnonzero(rows.topk_ids[column] == anchor.tokens[position])
                    remaskable[position] = float(np.exp(rows.topk_logprobs[column, found]).sum())
            improbable = [
                p for p in remaskable if remaskable[p] < np.float32(given_options["remask_threshold"]) and p < end
            ]
            limit_now = min(last - 1, limit - total - len(expected)) if accepted > 1 else 0
            expected += sorted(sorted(improbable, key=lambda p: (remaskable[p], p))[:limit_now])
        before |= {block.start: in_block(block) for block in winner.active}
        assert step.remasked.tolist() == expected
        total += len(expected)
        assert decoding.anchor.remasked == total

        # Remasked positions are masked, all others unchanged, and log-probabilities are from the last unmasking.
        after = decoding.anchor
        length = min(len(after.tokens), len(winner.tokens))
        kept = np.setdiff1d(np.flatnonzero(winner.unmasked[:length]), expected)
        np.testing.assert_array_equal(after.tokens[kept], winner.tokens[kept])
        assert after.unmasked[kept].all()
        assert not after.unmasked[expected].any()
        assert (after.tokens[expected] == MASK).all()
        assert step.unmasked.logprobs is not None
        logprob_of |= dict(zip(step.unmasked.positions.tolist(), step.unmasked.logprobs.tolist(), strict=True))
        if winner.lookahead is not None and winner.lookahead.logprob is not None:
            logprob_of[winner.lookahead.position] = winner.lookahead.logprob
        # Streamed text is final.
        committed = decoding.answer.committed.tolist()
        assert committed[: len(streamed)] == streamed
        streamed = committed
    if decoding.anchor.lookahead is not None:  # the last token, which no round verified
        logprob_of.pop(decoding.anchor.lookahead.position, None)
    assert len(streamed) <= params.positions
    logprobs = decoding.answer.logprobs
    assert logprobs is not None
    lookaheads = {p for p in range(len(logprobs)) if PROMPT + p not in logprob_of}
    for place in range(len(streamed)):
        if place not in lookaheads:
            assert logprobs[place] == np.float32(logprob_of[PROMPT + place])
