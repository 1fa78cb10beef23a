"""Stable-DiffCoder's architecture (Llama's layers, grouped heads) with SDAR's rules; there are no recordings of it."""

from pathlib import Path

import numpy as np
import pytest
from tests.conformance.plain.block_loop import Rule, block_diffusion
from tests.conformance.plain.sliding_loop import NEAR_TIE
from tests.conformance.plain.small_networks import END, MASK, SmallNetwork
from tests.export.layer_kinds import LayerKind

from lopa.runtime.bundle import Bundle
from lopa.runtime.generation_config import GenerationConfig

STRATEGIES: dict[Rule, str] = {"dynamic": "threshold", "static": "vanilla", "sequential": "sequential"}
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17]


@pytest.fixture(scope="module")
def network(tiny_bundle: Path) -> SmallNetwork:
    return SmallNetwork(LayerKind(False, False, 8), Bundle.open(tiny_bundle).manifest, sharpness=3)


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("rule", STRATEGIES)
@pytest.mark.parametrize(("block", "steps", "new"), [(4, None, 14), (4, 4, 16), (4, 2, 13), (8, 3, 20)])
def test_every_step_matches_the_plain_loop(
    network: SmallNetwork, reference: bool, rule: Rule, block: int, steps: int | None, new: int
) -> None:
    config = GenerationConfig(
        strategy=STRATEGIES[rule],  # type: ignore[arg-type]
        alignment="absolute",
        attention="block_causal",
        confidence="probability",
        block_size=block,
        block_steps=steps,
        skip_threshold=0.6,
        max_new_tokens=new,
        drop_after_eos=False,
        reference=reference,
    )
    rng = np.random.default_rng(block)
    compared = near_ties = 0
    for length in LENGTHS:
        prompt = rng.integers(3, 24, length).tolist()
        answer, plain = block_diffusion(
            network.network, prompt, rule=rule, block=block, steps=steps, threshold=0.6, new=new, mask=MASK, end=END,
            reference=reference,
        )  # fmt: skip
        ours, decoded = network.decode(prompt, config)
        written = [step.unmasked for step in decoded if len(step.unmasked.positions)]
        for expected, tokens in zip(plain, written, strict=False):
            if expected.margin < NEAR_TIE:
                near_ties += 1
                break
            assert dict(zip(tokens.positions.tolist(), tokens.tokens.tolist(), strict=True)) == expected.written
            compared += 1
        else:
            assert len(plain) == len(written)
            assert ours[: len(answer)] == answer[: len(ours)]
    print(f"{compared} steps, {near_ties} near-ties")
    assert compared > 20
    assert near_ties <= 2
