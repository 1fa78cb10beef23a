"""The best candidates of each token, recomputed from the statistics of the round that proposed it."""

import importlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.requests.batch_mates import CountingSession, decoded

from lopa import tiny
from lopa.runtime import Decoder, GenerationResult
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Statistics
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.wrapped_session import WrappedSession
from lopa.runtime.text.tokenizer import Tokenizer

Row = list[tuple[int, float]]


def recording(path: Path) -> Decoder:
    bundle = Bundle.open(path)
    session: Any = CountingSession(open_session(bundle, "cpu", threads=1))
    return Decoder(bundle, session, Tokenizer.open(bundle))


@pytest.fixture(scope="module")
def decoder(tiny_bundle: Path) -> Iterator[Decoder]:
    with recording(tiny_bundle) as opened:
        yield opened


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    with tiny.EVAL.open(encoding="utf-8") as lines:
        return [json.loads(line)["prompt"] for line, _ in zip(lines, range(2), strict=False)]


def row_of(recorded: Statistics, sampled: int) -> Row:
    ids, logprobs = recorded.topk_ids[sampled], recorded.topk_logprobs[sampled]
    return list(zip(ids.tolist(), logprobs.tolist(), strict=True))


def recomputed(decoder: Decoder, prompt: Any, **options: Any) -> tuple[GenerationResult, dict[int, Row]]:
    """Return the result, and for every position the K candidates of the row that proposed its last token.

    The rows come from the windows' own positions: row p - shift predicts position p. A row before the window is the
    last one that was committed.
    """
    session: Any = decoder.session
    session.statistics.clear()
    result, steps = decoded(decoder, prompt, deduplicate_rows=False, **options)
    shift = decoder.bundle.manifest.prediction_shift
    found: dict[int, Row] = {}
    proposed: dict[int, Row] = {}
    kept: Row = []
    for step, recorded in zip(steps, session.statistics, strict=True):
        packed = step.rows
        known: list[dict[int, Row]] = []
        """Rows of each branch, by the positions that they predict."""
        for end in np.cumsum(packed.lengths):
            first = sum(map(len, known))
            sampled = packed.sampled_rows[packed.sampled_rows < end][first:]
            predicted = (packed.positions[sampled] + shift).tolist()
            known.append({at: row_of(recorded, number) for number, at in enumerate(predicted, first)})
        if packed.kept_columns:
            kept = known[step.winner][packed.prefix + packed.commit]

        def row_at(position: int, branch: int, known: Any = known, kept: Row = kept) -> Row:
            row: Row = known[branch].get(position, kept)
            return row

        ahead = step.branches[step.winner].lookahead
        if ahead is not None:
            found[ahead.position] = proposed[ahead.position]
        branches = step.unmasked_branches.tolist()
        for position, branch in zip(step.unmasked.positions.tolist(), branches, strict=True):
            found[position] = row_at(position, branch)
        for position in step.edited.positions.tolist():
            found[position] = row_at(position, step.winner)
        proposed = {each.position: row_at(each.position, step.winner) for each in step.lookaheads}
        if step.last is not None:
            found[step.last.position] = proposed[step.last.position]
    return result, found


def check(decoder: Decoder, result: GenerationResult, rows: dict[int, Row], count: int, *, raw: bool = True) -> None:
    assert result.top_logprobs is not None
    assert result.logprobs is not None
    mask, start = decoder.bundle.manifest.special_tokens.mask, len(result.prompt_ids)
    assert len(result.top_logprobs) == len(result.token_ids) > 0
    for place, (token, logprob, best) in enumerate(
        zip(result.token_ids, result.logprobs, result.top_logprobs, strict=True)
    ):
        expected = [each for each in rows[start + place] if each[0] != mask][:count]
        assert [each.token_id for each in best] == [token for token, _ in expected]
        assert [each.logprob for each in best] == pytest.approx([each for _, each in expected], abs=1e-6)
        if raw and token in dict(best):
            assert dict(best)[token] == pytest.approx(logprob, abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"branches": 1},
        {"branches": 5},
        {"branches": 4, "attention": "block_causal", "confidence": "margin"},
        {"strategy": "d2f"},
        {"strategy": "threshold", "unmask_first_masked": True},
        {"strategy": "vanilla", "speculative": True, "branches": 4, "max_new_tokens": 40},
        {"strategy": "threshold", "speculative": True, "branches": 3, "temperature": 0.9, "seed": 4},
        {"branches": 4, "temperature": 1.5, "seed": 3, "skip_threshold": 0.5},
        {"strategy": "wino", "skip_threshold": 0.3, "max_new_tokens": 48},
        {"branches": 4, "regex": " So the answer is [0-9]+ [a-z]+\\.", "max_new_tokens": 40},
        {"strategy": "credit", "max_new_tokens": 40},
        {"branches": 3, "drop_after_eos": False, "stop_at_eos": False, "max_new_tokens": 40},
    ],
    ids=str,
)
def test_candidates_come_from_the_proposing_step(decoder: Decoder, prompts: list[str], options: dict[str, Any]) -> None:
    for number, prompt in enumerate(prompts):
        count = (3, 8)[number]
        result, rows = recomputed(decoder, prompt, top_logprobs=count, **options)
        if "regex" not in options:
            check(decoder, result, rows, count, raw=options.get("strategy") != "credit")
            continue
        # a grammar writes tokens that no forward proposed, and these have no candidates
        assert result.top_logprobs is not None
        assert result.logprobs is not None
        for best, logprob in zip(result.top_logprobs, result.logprobs, strict=True):
            assert bool(best) == (logprob == logprob)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llada", {}),
        ("llada", {"cache": "dual", "block_size": 8}),
        ("sdar", {}),
        ("fast_dllm_v2", {}),
        ("fast_dllm_v2", {"cache": "sub_block", "sub_block": 8}),
        ("llada2", {"editing_threshold": 0.0, "editing_limit": 3, "skip_threshold": 0.0}),
    ],
    ids=str,
)
def test_every_family_returns_candidates(family: str, options: Any, family_bundle: Callable[..., Path]) -> None:
    with recording(family_bundle(family)) as decoder:
        for length in (3, 37):
            prompt = list(range(5, 5 + length))
            result, rows = recomputed(decoder, prompt, top_logprobs=5, max_new_tokens=20, stop_at_eos=False, **options)
            check(decoder, result, rows, 5)


def test_candidates_change_nothing_and_are_off_by_default(decoder: Decoder, prompts: list[str]) -> None:
    plain = decoder.generate(prompts[0], branches=4)
    assert plain.top_logprobs is None
    assert decoder.generate(prompts[0], branches=4, logprobs=True).top_logprobs is None
    assert decoder.generate(prompts[0], branches=4, top_logprobs=0).logprobs is None
    result = decoder.generate(prompts[0], branches=4, top_logprobs=2)
    assert (result.token_ids, result.steps) == (plain.token_ids, plain.steps)
    assert result.logprobs is not None, "candidates come with the log-probabilities of the tokens"


class MaskProposingSession(WrappedSession):
    """A session whose second candidate is always the mask token."""

    def __init__(self, session: Session, mask: int) -> None:
        super().__init__(session)
        self._mask = mask

    def wait(self, ticket: Any) -> Statistics:
        found = self._inner.wait(ticket)
        found.topk_ids[..., 1] = self._mask
        return found


@pytest.mark.parametrize("options", [{}, {"choices": [(5,)]}, {"reference": True}], ids=str)
def test_the_mask_token_is_a_candidate_in_reference_mode_alone(
    tiny_bundle_logits: Path, prompts: list[str], options: Any
) -> None:
    bundle = Bundle.open(tiny_bundle_logits)
    mask = bundle.manifest.special_tokens.mask
    session: Any = MaskProposingSession(open_session(bundle, "cpu", threads=1), mask)
    with Decoder(bundle, session, Tokenizer.open(bundle)) as decoder:
        result = decoder.generate(prompts[0], branches=1, max_new_tokens=32, top_logprobs=4, **options)
    assert result.top_logprobs
    for best in result.top_logprobs:
        assert len(best) == 4
        assert [number for number, each in enumerate(best) if each.token_id == mask] == [1] * ("reference" in options)


def test_a_masked_position_of_reference_mode_has_no_logprob(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published loop returns masked positions at its own limit of steps, which is lower here."""
    module = importlib.import_module("lopa.runtime.generation_config.resolve")
    monkeypatch.setattr(module, "PUBLISHED_STEP_LIMIT", 3)
    config = decoder.config(reference=True, strategy="vanilla", max_new_tokens=32, logprobs=True)
    (result,) = decoder.generate(["Question: 2 + 3?\nAnswer:"], config)
    assert result.logprobs is not None
    mask = decoder.bundle.manifest.special_tokens.mask
    assert (result.stop_reason, result.token_ids.count(mask)) == ("step_limit", 29)
    assert [math.isnan(each) for each in result.logprobs] == [token == mask for token in result.token_ids]
