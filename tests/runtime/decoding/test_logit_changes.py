"""Penalties and biases have vLLM's values at every position that a decode reads, in every strategy."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.params import context_of, params_of

from lopa.runtime import BadInputError, Decoder, Step
from lopa.runtime.bundle.edit import edit_bundle
from lopa.runtime.contract import Float32
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding import logit_changes, lopa_loop
from lopa.runtime.decoding.logit_changes import change_logits, changed_rows, statistics_from_logits
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import Branch, first_branch
from lopa.runtime.state.layout import Layout
from lopa.runtime.strategy import STRATEGIES
from lopa.runtime.text.text_with_holes import Hole

PENALTIES: dict[str, Any] = {
    "presence_penalty": 0.7,
    "frequency_penalty": 0.4,
    "repetition_penalty": 1.3,
    "logit_bias": {3: -100, 9: 2.5, 12: -1},
}
NEUTRAL: dict[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1,
    "logit_bias": {5: 0},
    "min_p": 0,
}
PROMPT = "Question: Ivy has 6 balloons and Omar has 2 balloons. How many balloons are there?\nAnswer:"


def of_vllm(logits: Float32, branch: Branch, position: int, params: DecodingParams) -> torch.Tensor:
    """Return the logits [V] of a position by vLLM's formulas (LogitBiasLogitsProcessor, apply_penalties)."""
    spans = branch.layout.holes or ((branch.layout.prompt, len(branch.tokens)),)
    answer = {place for start, end in spans for place in range(start, end)}
    known = np.flatnonzero(branch.unmasked).tolist()
    prompt = [int(branch.tokens[place]) for place in known if place not in answer]
    output = [int(branch.tokens[place]) for place in known if place in answer and place != position]
    found = torch.from_numpy(logits).clone()
    for token, bias in params.logit_bias.items():
        found[int(token)] += bias
    in_prompt = torch.bincount(torch.tensor(prompt, dtype=torch.long), minlength=len(found)) > 0
    counts = torch.bincount(torch.tensor(output, dtype=torch.long), minlength=len(found))
    scale = torch.where(in_prompt | (counts > 0), params.repetition_penalty, 1.0)
    found = torch.where(found > 0, found / scale, found * scale)
    found -= params.frequency_penalty * counts
    found -= params.presence_penalty * (counts > 0)
    return found


def random_branch(rng: np.random.Generator, params: DecodingParams, vocabulary: int) -> Branch:
    """Return a branch with tokens on both sides of masked positions, behind a prompt or around holes."""
    prompt = rng.integers(0, vocabulary, 12)
    holes = ((4, 7), (9, 12)) if rng.random() < 0.3 else ()
    layout = Layout(prompt=4 if holes else 8, first=4 if holes else 8, size=8, end=12 if holes else 20, holes=holes)
    branch = first_branch(prompt if holes else prompt[:8], replace(layout, whole=not holes), context_of(params))
    masked = np.flatnonzero(~branch.unmasked)
    written = rng.permutation(masked)[: rng.integers(0, len(masked))]
    branch.tokens[written], branch.unmasked[written] = rng.integers(0, vocabulary, len(written)), True
    return branch


@pytest.mark.parametrize("options", [PENALTIES, {"repetition_penalty": 0.5}, {"presence_penalty": -2}], ids=str)
@pytest.mark.parametrize("temperature", [0, 0.6])
def test_logits_have_the_values_of_vllm(options: dict[str, Any], temperature: float) -> None:
    rng, params = np.random.default_rng(len(options)), params_of(**options, temperature=temperature)
    for _ in range(30):
        branch = random_branch(rng, params, 20)
        positions = rng.permutation(len(branch.tokens) + 1)[: rng.integers(1, 13)]
        logits = rng.normal(size=(len(positions), 20)).astype(np.float32) * 3
        expected = torch.stack(
            [of_vllm(row, branch, int(at), params) for row, at in zip(logits, positions, strict=True)]
        )
        change_logits(logits, positions, branch, params)
        np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-6)
        found = statistics_from_logits(logits, params.logits_temperature)
        distribution = torch.distributions.Categorical(logits=expected / (temperature or 1))
        best = distribution.logits.topk(8)
        np.testing.assert_array_equal(found.topk_ids, best.indices)
        np.testing.assert_allclose(found.topk_logprobs, best.values, atol=1e-5)
        np.testing.assert_allclose(found.entropy, distribution.entropy(), atol=1e-5)


def test_equal_candidates_are_in_the_order_of_ids() -> None:
    logits = np.float32(np.random.default_rng(0).integers(0, 4, (50, 40)))
    expected = np.argsort(-logits, axis=-1, kind="stable")[:, :8]
    np.testing.assert_array_equal(statistics_from_logits(logits, 1.0).topk_ids, expected)


@pytest.fixture(scope="module")
def with_logits(tiny_bundle_logits: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle_logits, ["cpu"]) as decoder:
        yield decoder


CASES: list[dict[str, Any]] = [
    *({"strategy": each.name, **({"attention": "full"} if each.whole else {})} for each in STRATEGIES.values()),
    {"strategy": "lopa", "branches": 4, "block_size": 8},
    {"strategy": "threshold", "speculative": True, "branches": 3},
    {"strategy": "lopa", "branches": 3, "temperature": 0.8, "top_k": 0, "seed": 3},
]


@pytest.mark.parametrize("options", [*CASES, {"parts": True}], ids=str)
def test_every_strategy_reads_them(
    options: dict[str, Any], with_logits: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every column of every round has vLLM's logits; greedy tokens are the best of them, away from edges of holes."""
    is_plain = not {"temperature", "parts"} & options.keys() and options.get("strategy") != "credit"
    rounds: list[tuple[RowStatistics, RowStatistics]] = []

    def noted(loop: Any, packed: Any, rows: RowStatistics) -> RowStatistics:
        rounds.append((rows, changed_rows(loop, packed, rows)))
        return rounds[-1][1]

    monkeypatch.setattr(lopa_loop, "changed_rows", noted)
    steps, options = list[Step](), dict(options)
    if options.pop("parts", False):
        parts = ["Ivy has 6 balloons and Omar has ", Hole(6), " balloons. They have ", Hole(5), " balloons."]
        text = with_logits.fill(parts, on_step=steps.append, attention="full", **PENALTIES).text
    else:
        text = with_logits.generate(
            PROMPT, on_step=lambda _, step: steps.append(step), max_new_tokens=24, **PENALTIES, **options
        ).text
    assert len(rounds) == len(steps) > 0, text
    params, checked = params_of(**PENALTIES), 0
    for (rows, after), step in zip(rounds, steps, strict=True):
        owners = np.searchsorted(step.rows.first_columns, np.arange(len(step.rows.column_positions)), side="right") - 1
        assert rows.logits is not None
        assert after.logits is not None
        for column, position in enumerate(step.rows.column_positions.tolist()):
            expected = of_vllm(rows.logits[column], step.branches[owners[column]], position, params)
            np.testing.assert_allclose(after.logits[column], expected, rtol=1e-5, atol=1e-5)
        for branch, candidates in enumerate(step.candidates):
            best = after.topk_ids[step.rows.sampled_columns(branch)]
            if is_plain and len(best):
                mask = with_logits.bundle.manifest.special_tokens.mask
                np.testing.assert_array_equal(candidates.tokens, np.where(best == mask, best[:, 1:2], best)[:, 0])
                checked += len(best)
    assert checked or not is_plain


def test_they_change_answers_and_neutral_values_change_none(decoder: Decoder, with_logits: Decoder) -> None:
    plain = decoder.generate(PROMPT, max_new_tokens=48)
    for each in (decoder, with_logits):
        assert each.generate(PROMPT, max_new_tokens=48, **NEUTRAL).token_ids == plain.token_ids
        assert each.generate(PROMPT, max_new_tokens=32, reference=True, **NEUTRAL).token_ids
    repeated = max(plain.token_ids, key=plain.token_ids.count)
    banned = with_logits.generate(PROMPT, max_new_tokens=48, logit_bias={repeated: -100})
    assert repeated not in banned.token_ids
    once = with_logits.generate(PROMPT, max_new_tokens=24, strategy="vanilla", frequency_penalty=2, presence_penalty=2)
    assert len(set(once.token_ids)) > len(set(plain.token_ids[:24]))
    grammar = with_logits.generate(PROMPT, max_new_tokens=24, regex="[0-9]{3}", logit_bias={repeated: 100})
    assert len(grammar.text) == 3
    assert grammar.text.isdigit()


@pytest.mark.parametrize("name", PENALTIES)
def test_they_are_refused_by_name_where_they_cannot_work(name: str, decoder: Decoder, with_logits: Decoder) -> None:
    given = {name: PENALTIES[name]}
    for refused in ({}, {"temperature": 1.0, "top_k": 50}):
        with pytest.raises(BadInputError, match=f"{name} with a bundle that returns no logits"):
            decoder.generate(PROMPT, **given, **refused)
    with pytest.raises(BadInputError, match=f"{name} by default"):
        edit_bundle(decoder.bundle, defaults=given)
    with pytest.raises(BadInputError, match=f"cannot use {name} in reference mode"):
        with_logits.config(reference=True, **given)
    with pytest.raises(BadInputError, match=f"cannot combine choices with {name}"):
        with_logits.config(choices=["1", "2"], **given)


def test_a_bias_of_a_token_outside_the_vocabulary_is_refused(with_logits: Decoder) -> None:
    size = with_logits.bundle.manifest.dimensions.vocab_size
    with pytest.raises(BadInputError, match=f"logit_bias for the token {size}"):
        with_logits.generate(PROMPT, logit_bias={str(size): 1.0})


def test_an_own_token_is_not_counted_when_its_position_is_computed_again() -> None:
    params = params_of(frequency_penalty=1.0)
    branch = random_branch(np.random.default_rng(1), params, 20)
    at = np.flatnonzero(branch.unmasked)[-1:]
    logits = np.zeros((1, 20), np.float32)
    logit_changes.change_logits(logits, at, branch, params)
    assert logits[0, branch.tokens[at[0]]] == 1 - np.count_nonzero(branch.tokens[8:] == branch.tokens[at[0]])
