"""Log-probabilities of an answer's tokens, recomputed from the statistics of each round."""

import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.decoding.rounds import columns_of_forward

from lopa import tiny
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Statistics
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession
from lopa.runtime.text.tokenizer import Tokenizer


class RecordingSession(WrappedSession):
    """A session that records the statistics of its forwards."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.recorded: list[Statistics] = []

    def wait(self, ticket: Ticket) -> Statistics:
        self.recorded.append(self._inner.wait(ticket))
        return self.recorded[-1]


@pytest.fixture(scope="module")
def decoder(tiny_bundle: Path) -> Iterator[Decoder]:
    bundle = Bundle.open(tiny_bundle)
    session: Any = RecordingSession(open_session(bundle, "cpu", threads=1))
    with Decoder(bundle, session, Tokenizer.open(bundle)) as decoder:
        yield decoder


def row_logprob(row: RowStatistics | None, token: int) -> float:
    assert row is not None
    return float(row.topk_logprobs[row.topk_ids.tolist().index(token)])


def recomputed(decoder: Decoder, prompt: str, **options: Any) -> tuple[GenerationResult, dict[int, float]]:
    """Return the result, and the log-probability of every unmasked position, recomputed from the statistics."""
    session: Any = decoder.session
    session.recorded.clear()
    steps: list[Step] = []
    *_, last = decoder.stream(prompt, decoder.config(logprobs=True, **options), on_step=steps.append)
    shift = decoder.bundle.manifest.prediction_shift
    found: dict[int, float] = {}
    proposed: dict[tuple[int, int], float] = {}
    kept: RowStatistics | None = None
    for step, recorded in zip(steps, session.recorded, strict=True):
        packed = step.rows
        rows, first = columns_of_forward(packed, recorded), packed.first_columns[step.winner]
        kept = rows[first] if packed.commit else kept
        row_of = {
            int(position): kept if position - shift < packed.prefix and not packed.commit else rows[first + column]
            for column, position in enumerate(packed.column_positions[first:][: packed.branch_columns[step.winner]])
        }
        ahead = step.branches[step.winner].lookahead
        if ahead is not None:
            found[ahead.position] = proposed[ahead.position, ahead.token]
        for position, token in zip(step.unmasked.positions.tolist(), step.unmasked.tokens.tolist(), strict=True):
            found[position] = row_logprob(row_of[position], token)
        proposed = {
            (each.position, each.token): row_logprob(row_of[each.position], each.token) for each in step.lookaheads
        }
    # A lookahead that unmasks the last position is accepted without another round.
    final = {position: logprob for (position, _), logprob in proposed.items()}
    answer = last.result  # type: ignore[union-attr]
    return answer, {**final, **found}


@pytest.mark.parametrize(
    "options",
    [
        {"branches": 1},
        {"branches": 5},
        {
            "branches": 4,
            "attention": "block_causal",
            "confidence": "margin",
            "deduplicate_rows": False,
        },  # statistics per branch
        {"strategy": "d2f"},
        {"strategy": "threshold"},
        {"strategy": "vanilla", "max_new_tokens": 40},
        {"branches": 4, "temperature": 1.5, "seed": 3, "skip_threshold": 0.5},
        {"branches": 4, "temperature": 0.7, "top_k": 3, "top_p": 0.9, "seed": 5},
        {"branches": 4, "reference": True, "max_new_tokens": 64},
        {"branches": 3, "drop_after_eos": False, "stop_at_eos": False, "max_new_tokens": 40},
    ],
    ids=str,
)
def test_logprobs_come_from_the_proposing_step(decoder: Decoder, options: dict[str, Any]) -> None:
    with tiny.EVAL.open(encoding="utf-8") as lines:
        prompts = [json.loads(line)["prompt"] for line, _ in zip(lines, range(3), strict=False)]
    for prompt in prompts:
        result, expected = recomputed(decoder, prompt, **options)
        assert result.logprobs is not None
        assert len(result.logprobs) == len(result.token_ids) > 0
        start = len(result.prompt_ids)
        assert [expected[start + index] for index in range(len(result.logprobs))] == pytest.approx(
            list(result.logprobs), abs=1e-6
        )
        assert all(isinstance(each, float) and each <= 1e-5 for each in result.logprobs)


def test_logprobs_change_nothing_and_are_off_by_default(decoder: Decoder) -> None:
    prompt = "Question: 2 + 3?\nAnswer:"
    plain = decoder.generate(prompt, decoder.config(branches=4))
    assert plain.logprobs is None
    (with_them,) = decoder.generate([prompt], decoder.config(branches=4, logprobs=np.True_))
    assert (with_them.token_ids, with_them.steps) == (plain.token_ids, plain.steps)


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
