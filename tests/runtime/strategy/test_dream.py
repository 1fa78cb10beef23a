"""Strategy dream, compared step by step with Dream's own generate in float64 on the tiny checkpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.conformance.plain.plain_network import PlainNetwork
from tests.conformance.plain.test_plain_caches import plain_of_bundle
from tests.runtime.requests.batch_mates import decoded

from lopa.runtime import Decoder

if TYPE_CHECKING:
    from torch import Tensor

NEAR = 1e-4
"""Tolerance for confidences, which float32 may order differently. Where filters leave one candidate, they are 0."""


@pytest.fixture(scope="module")
def network(decoder: Decoder) -> PlainNetwork:
    pytest.importorskip("torch")
    return plain_of_bundle(decoder.bundle)


@pytest.fixture(scope="module")
def with_logits(tiny_bundle_logits: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle_logits, threads=1) as decoder:
        yield decoder


def filtered(logits: "Tensor", top_p: float | None, top_k: int | None) -> "Tensor":
    """Return the probabilities [n, V] that Dream's sample_tokens leaves after top_p, then top_k."""
    import torch

    if top_p is not None:
        values, order = logits.sort(descending=True)
        behind = values.softmax(-1).cumsum(-1) > top_p
        behind = torch.cat([torch.zeros_like(behind[:, :1]), behind[:, :-1]], dim=1)
        logits = logits.masked_fill(torch.zeros_like(behind).scatter(1, order, behind), -torch.inf)
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    return logits.softmax(-1)


def confidences_by(alg: str, p: "Tensor") -> "Tensor":
    best = p.topk(2).values
    if alg == "topk_margin":
        return best[:, 0] - best[:, 1]
    return (p * (p + 1e-10).log()).sum(-1) if alg == "entropy" else best[:, 0]


@pytest.mark.parametrize(
    ("alg", "options", "masked"),
    [
        ("maskgit_plus", {"steps": 12}, True),
        ("maskgit_plus", {"steps": 9, "top_p": 0.8, "top_k": 5}, False),
        ("topk_margin", {"steps": 7, "temperature": 0.7, "top_p": 0.85, "top_k": 0, "seed": 3}, False),
        ("entropy", {"steps": 6, "temperature": 1.5, "top_p": 0.6, "top_k": 20, "seed": 4}, True),
    ],
)
def test_every_step_matches_dreams_loop(
    with_logits: Decoder,
    prompt: tuple[int, ...],
    network: PlainNetwork,
    alg: str,
    options: dict[str, Any],
    masked: bool,
) -> None:
    """Each step is compared from our state, so that one near-tie does not change all later steps.

    With `masked` the prompt holds the mask token. At a temperature any token that the loop may draw is accepted.
    """
    import torch

    manifest, new = with_logits.bundle.manifest, 24
    if masked:
        prompt = (*prompt[:9], manifest.special_tokens.mask, *prompt[10:])
    config = with_logits.config(strategy="dream", alg=alg, max_new_tokens=new, reference=True, **options)
    result, seen = decoded(with_logits, prompt, config)
    steps, mask = options.get("steps", new), manifest.special_tokens.mask
    times = torch.linspace(1, 1e-3, steps + 1)
    rounds, left = iter(seen), new
    for number in range(steps):
        count = int(left * (1 - times[number + 1] / times[number])) if number < steps - 1 else left
        if not count:
            continue  # a forward that unmasks nothing
        step = next(rounds)
        tokens = step.branches[0].tokens
        assert len(tokens) == len(prompt) + new
        assert tuple(tokens[: len(prompt)]) == prompt
        open_now = len(prompt) + np.flatnonzero(tokens[len(prompt) :] == mask)
        assert len(open_now) == left
        rows = np.arange(len(tokens))
        logits = torch.from_numpy(
            network.rows(tokens, rows, np.ones((len(rows), len(rows)), np.bool_))[0][open_now - 1]
        )
        p = filtered(logits / options.get("temperature", 1.0), options.get("top_p"), options.get("top_k"))
        confidence, proposed = confidences_by(alg, p), p.argmax(-1)
        assert step.confidences[0] == pytest.approx(float(confidence.mean()), abs=NEAR)
        chosen = np.isin(open_now, step.unmasked.positions)
        assert chosen.sum() == count == len(step.unmasked.positions)
        if "temperature" in options:
            assert (p[torch.from_numpy(chosen)].gather(1, torch.from_numpy(step.unmasked.tokens)[:, None]) > 0).all()
        else:
            assert proposed[torch.from_numpy(chosen)].tolist() == step.unmasked.tokens.tolist()
        worst, limit = confidence[torch.from_numpy(chosen)].min(), confidence.topk(count).values[-1]
        assert worst >= limit - NEAR
        left -= count
    assert next(rounds, None) is None
    assert result.stop_reason in ("eos", "length")
    assert result.branches == 1


def test_origin_unmasks_by_its_draws_alone(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    """Another seed unmasks other positions. The same seed unmasks the same ones, regardless of batch mates."""
    order: dict[int, list[list[int]]] = {}
    for seed in (1, 1, 2):
        config = decoder.config(strategy="dream", alg="origin", steps=8, max_new_tokens=16, seed=seed, reference=True)
        _, steps = decoded(decoder, prompt, config)
        found = [step.unmasked.positions.tolist() for step in steps]
        assert sorted(position for each in found for position in each) == list(range(len(prompt), len(prompt) + 16))
        assert order.setdefault(seed, found) == found
    assert order[1] != order[2]
