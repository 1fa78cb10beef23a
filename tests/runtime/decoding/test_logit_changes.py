"""Penalties and biases have vLLM's values at every position that a decode reads, in every strategy."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lopa.runtime import BadInputError, Decoder, Step
from lopa.runtime.bundle.edit import edit_bundle
from lopa.runtime.contract import Float32
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding import lopa_loop
from lopa.runtime.decoding.logit_changes import changed_rows
from lopa.runtime.state.branch import Branch
from lopa.runtime.strategy import STRATEGIES
from lopa.runtime.text.text_with_holes import Hole

CHANGES: dict[str, Any] = {
    "presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3, "logit_bias": {3: -100, "97": 9},
}  # fmt: skip
NEUTRAL: dict[str, Any] = {
    "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {5: 0}, "min_p": 0,
}  # fmt: skip
PROMPT = "Question: Ivy has 6 balloons and Omar has 2 balloons. How many balloons are there?\nAnswer:"
PARTS = ["Ivy has 6 balloons and Omar has ", Hole(6), " balloons. They have ", Hole(5), " balloons."]
CASES: list[dict[str, Any]] = [
    *(
        {"strategy": each.name, **({"attention": "full"} if each.whole else {})}
        for each in STRATEGIES.values()
        if not each.canvas
    ),
    {"strategy": "lopa", "branches": 4, "block_size": 8, "repetition_penalty": 0.5, "presence_penalty": -2},
    {"strategy": "threshold", "speculative": True, "branches": 3},
    {"strategy": "lopa", "branches": 3, "temperature": 0.8, "top_k": 0, "seed": 3},
    {"parts": PARTS, "attention": "full"},
]


@pytest.fixture(scope="module")
def with_logits(tiny_bundle_logits: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle_logits, ["cpu"]) as decoder:
        yield decoder


def of_vllm(logits: Float32, branch: Branch, position: int, options: dict[str, Any]) -> torch.Tensor:
    """Return the logits [V] of a position by vLLM's formulas (LogitBiasLogitsProcessor, apply_penalties)."""
    spans = branch.layout.holes or ((branch.layout.prompt, len(branch.tokens)),)
    answer = {place for start, end in spans for place in range(start, end)}
    known = np.flatnonzero(branch.unmasked).tolist()
    prompt = torch.tensor([int(branch.tokens[place]) for place in known if place not in answer])
    output = [int(branch.tokens[place]) for place in known if place in answer and place != position]
    found = torch.from_numpy(logits).clone()
    for token, bias in options["logit_bias"].items():
        found[int(token)] += bias
    counts = torch.bincount(torch.tensor(output, dtype=torch.long), minlength=len(found))
    seen = (torch.bincount(prompt, minlength=len(found)) > 0) | (counts > 0)
    penalty = options["repetition_penalty"]
    found = torch.where(seen, torch.where(found > 0, found / penalty, found * penalty), found)
    return found - options["frequency_penalty"] * counts - options["presence_penalty"] * (counts > 0)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_every_strategy_reads_the_logits_of_vllm(
    options: dict[str, Any], with_logits: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits of every round are random ones, some of them equal. Greedy tokens are the best of the changed ones."""
    rounds, steps, rng = list[tuple[Float32, RowStatistics]](), list[Step](), np.random.default_rng(len(options))

    def noted(loop: Any, packed: Any, rows: RowStatistics) -> RowStatistics:
        assert rows.logits is not None
        logits = np.float32(rng.normal(size=rows.logits.shape).round(2) * 4)
        rounds.append((logits, changed_rows(loop, packed, replace(rows, logits=logits))))
        return rounds[-1][1]

    monkeypatch.setattr(lopa_loop, "changed_rows", noted)
    options = {**CHANGES, **options}
    if "parts" in options:
        with_logits.fill(on_step=steps.append, **options)
    else:
        with_logits.generate(PROMPT, on_step=lambda _, step: steps.append(step), max_new_tokens=24, **options)
    assert len(rounds) == len(steps) > 1
    mask, temperature = with_logits.bundle.manifest.special_tokens.mask, options.get("temperature", 1)
    for (logits, after), step in zip(rounds, steps, strict=True):
        owners = np.searchsorted(step.rows.first_columns, np.arange(len(logits)), side="right") - 1
        columns = zip(logits, owners.tolist(), step.rows.column_positions.tolist(), strict=True)
        expected = torch.stack([of_vllm(row, step.branches[own], at, options) for row, own, at in columns])
        np.testing.assert_allclose(after.logits, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(after.topk_ids, np.argsort(-after.logits, axis=-1, kind="stable")[:, :8])
        distribution = torch.distributions.Categorical(logits=expected / temperature)
        np.testing.assert_allclose(after.topk_logprobs, distribution.logits.topk(8).values, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(after.entropy, distribution.entropy(), atol=1e-4)
        for branch, candidates in enumerate(step.candidates):
            best = expected[step.rows.sampled_columns(branch)]
            best[:, mask] = -torch.inf
            is_best = candidates.tokens == best.numpy().argmax(-1)
            assert is_best.all() or temperature < 1 or {"parts", "credit"} & {*options, options.get("strategy")}


def test_a_bias_bans_a_token_and_neutral_values_change_nothing(decoder: Decoder, with_logits: Decoder) -> None:
    plain = decoder.generate(PROMPT, max_new_tokens=48)
    for each in (decoder, with_logits):
        assert each.generate(PROMPT, max_new_tokens=48, **NEUTRAL).token_ids == plain.token_ids
    assert with_logits.config(reference=True, **NEUTRAL).reference
    common = max(plain.token_ids, key=plain.token_ids.count)
    assert common not in with_logits.generate(PROMPT, max_new_tokens=48, logit_bias={common: -100}).token_ids
    digits = with_logits.generate(PROMPT, max_new_tokens=24, regex="[0-9]{3}", logit_bias={common: 100}).text
    assert (digits.isdigit(), len(digits)) == (True, 3)


@pytest.mark.parametrize("name", CHANGES)
def test_they_are_refused_by_name_where_they_cannot_work(name: str, decoder: Decoder, with_logits: Decoder) -> None:
    given: dict[str, Any] = {name: CHANGES[name]}
    with pytest.raises(BadInputError, match=f"{name} .* returns only the 8 best"):
        decoder.prepare(PROMPT, temperature=1.0, top_k=50, **given)
    with pytest.raises(BadInputError, match=f"{name} by default"):
        edit_bundle(decoder.bundle, defaults=given)
    for other, match in ((("reference", True), f"cannot use {name} in"), (("choices", ["1"]), f"choices with {name}")):
        with pytest.raises(BadInputError, match=match):
            with_logits.config(**dict([other]), **given)
    with pytest.raises(BadInputError, match="token id in logit_bias 'x'"):
        with_logits.config(logit_bias={"x": 1.0})
    with pytest.raises(BadInputError, match="logit_bias with the token 999999"):
        with_logits.prepare(PROMPT, logit_bias={"999999": 1.0})
    with pytest.raises(BadInputError, match=r"logit_bias \{'999999': 1.0\} by default"):
        edit_bundle(with_logits.bundle, defaults={"logit_bias": {"999999": 1.0}})
    assert edit_bundle(with_logits.bundle, defaults={"top_k": 50}).manifest.defaults == {"top_k": 50}
