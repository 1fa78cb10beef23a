"""Whole decodes that take back: random answers against the rule written out plainly, then the tiny model."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lopa.runtime import GenerationConfig
from lopa.runtime.algorithm.decoding import Decoding
from lopa.runtime.sequence.blocks import Block, active
from lopa.runtime.sequence.branches import Branch
from lopa.runtime.sequence.layout import most_rows
from lopa.runtime.sequence.row_statistics import RowStatistics
from lopa.runtime.sequence.windows import Windows

MASK, END, PAD, VOCABULARY, PROMPT = 2, 0, 1, 40, 5
NO_DEVICE: Any = SimpleNamespace(device="none", commit=lambda *_: None, shorten=lambda *_: None)


def decoding_of(config: GenerationConfig, shift: int) -> Decoding:
    manifest: Any = SimpleNamespace(
        dimensions=SimpleNamespace(vocab_size=VOCABULARY),
        prediction_shift=shift,
        special_tokens=SimpleNamespace(pad=PAD, mask=MASK, ends=(END,)),
    )
    return Decoding(NO_DEVICE, 0, np.arange(10, 10 + PROMPT), config, manifest)


def random_rows(rng: np.random.Generator, windows: Windows, *, ends: float) -> RowStatistics:
    """[B, Q] of a model that knows nothing: some best tokens are the end, most are sure of themselves or not at all."""
    shape = windows.wanted.shape
    ids = rng.permuted(np.broadcast_to(np.arange(3, VOCABULARY), (*shape, VOCABULARY - 3)), axis=-1)[..., :8].copy()
    ids[..., 0] = np.where(rng.random(shape) < ends, END, ids[..., 0])
    logits = rng.normal(0, 1, (*shape, 8)) + np.where(np.arange(8) == 0, rng.choice([0, 3, 8], shape)[..., None], 0)
    # A judged token is among the candidates in half of the cases.
    known = np.log(rng.random((*shape, 8)))
    logits = np.where(rng.random(shape)[..., None] < 0.5, np.sort(known)[..., ::-1], -np.sort(-logits))
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    entropy = -(np.exp(logprobs) * logprobs).sum(axis=-1)
    return RowStatistics(ids, logprobs.astype(np.float32), entropy.astype(np.float32))


def with_tokens_known(rng: np.random.Generator, rows: RowStatistics, windows: Windows, anchor: Branch) -> RowStatistics:
    """Shadow rows that find the token they judge among the candidates, at a random place, in four of five cases."""
    first = windows.kept + len(windows.asked[-1])
    for column, position in enumerate(windows.judged, start=first):
        if rng.random() < 0.8:
            rows.topk_ids[-1, column] = np.where(
                rows.topk_ids[-1, column] == anchor.tokens[position], 39, rows.topk_ids[-1, column]
            )
            rows.topk_ids[-1, column, int(rng.integers(8))] = anchor.tokens[position]
    return rows


options = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["d2f", "lopa", "threshold", "wino"]),
        "skip_threshold": st.sampled_from([0.0, 0.3, 0.6, 0.9]),
        "take_back_threshold": st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]),
        "take_back_limit": st.sampled_from([None, 0, 3, 10**6]),
        "block_size": st.sampled_from([4, 8, 16]),
        "max_new_tokens": st.integers(1, 40),
        "alignment": st.sampled_from(["prompt", "absolute"]),
        "window": st.sampled_from(["full", "block_causal"]),
        "block_add_threshold": st.sampled_from([0.0, 0.3, 1.0]),
        "drop_after_eos": st.booleans(),
        "stop_at_eos": st.booleans(),
        "logprobs": st.just(True),
        "sub_block": st.sampled_from([None, 3]),
    }
)


@given(
    given_options=options, shift=st.integers(0, 1), ends=st.sampled_from([0.0, 0.05]), seed=st.integers(0, 2**32 - 1)
)
@settings(max_examples=150, deadline=None)
def test_any_decode_follows_the_rule_and_ends(
    given_options: dict[str, Any], shift: int, ends: float, seed: int
) -> None:
    branches = {"branches": 3} if given_options["strategy"] == "lopa" else {}
    config = GenerationConfig(**given_options, **branches)
    rng = np.random.default_rng(seed)
    decoding = decoding_of(config, shift)
    limit = config.max_new_tokens if config.take_back_limit is None else config.take_back_limit
    before: dict[int, int] = {}
    total = 0
    said: dict[int, float] = {}
    streamed: list[int] = []
    rows_most, asked_most = most_rows(PROMPT, config)
    while decoding.stop_reason is None:
        anchor = decoding.anchor
        windows = decoding.open_round()
        assert windows.input_ids.shape[1] <= rows_most
        assert windows.wanted.shape[1] <= asked_most + 1
        rows = with_tokens_known(rng, random_rows(rng, windows, ends=ends), windows, anchor)
        step = decoding.finish_round(windows, rows, None)
        assert decoding.steps <= config.positions + 4 + total + len(anchor.blocks), "it goes on and on"

        winner = step.branches[step.winner]
        ahead = [] if winner.lookahead is None else [winner.lookahead.position]
        written = [*step.fills.positions.tolist(), *ahead]

        end = len(decoding.anchor.tokens) if config.drops_rows_after_end else 10**6
        stays = [position for position in written if position < end]

        def in_block(block: Block, stays: list[int] = stays) -> int:
            return sum(block.start <= position < block.end for position in stays)

        expected = []
        first = windows.kept + len(windows.asked[-1])
        for block in active(anchor.blocks):
            last = before.get(block.start, 30)
            accepted = in_block(block)
            judged = {}
            for position in range(max(block.start, PROMPT), block.end):
                is_end = config.stop_at_eos and anchor.tokens[position] == END
                if anchor.decided[position] and not is_end and last > 1 and total < limit:
                    column = first + windows.judged.tolist().index(position)
                    found = np.flatnonzero(rows.topk_ids[-1, column] == anchor.tokens[position])
                    judged[position] = float(np.exp(rows.topk_logprobs[-1, column, found]).sum())
            doubts = [p for p in judged if judged[p] < np.float32(given_options["take_back_threshold"]) and p < end]
            most = min(last - 1, limit - total - len(expected)) if accepted > 1 else 0
            expected += sorted(sorted(doubts, key=lambda p: (judged[p], p))[:most])
        before |= {block.start: in_block(block) for block in active(winner.blocks)}
        assert step.taken_back.tolist() == expected
        total += len(expected)
        assert decoding.anchor.taken_back == total

        # What was taken back is undecided, everything else stands, and the log-probabilities are of the last fill.
        after = decoding.anchor
        length = min(len(after.tokens), len(winner.tokens))
        kept = np.setdiff1d(np.flatnonzero(winner.decided[:length]), expected)
        np.testing.assert_array_equal(after.tokens[kept], winner.tokens[kept])
        assert after.decided[kept].all()
        assert not after.decided[expected].any()
        assert (after.tokens[expected] == MASK).all()
        assert step.fills.logprobs is not None
        said |= dict(zip(step.fills.positions.tolist(), step.fills.logprobs.tolist(), strict=True))
        if winner.lookahead is not None and winner.lookahead.logprob is not None:
            said[winner.lookahead.position] = winner.lookahead.logprob
        # What was streamed stays.
        committed = decoding.committed().tolist()
        assert committed[: len(streamed)] == streamed
        streamed = committed
    if decoding.anchor.lookahead is not None:  # the last token, which no round verified
        said.pop(decoding.anchor.lookahead.position, None)
    assert len(streamed) <= config.positions
    logprobs = decoding.logprobs()
    assert logprobs is not None
    lookaheads = {p for p in range(len(logprobs)) if PROMPT + p not in said}
    for place in range(len(streamed)):
        if place not in lookaheads:
            assert logprobs[place] == np.float32(said[PROMPT + place])
