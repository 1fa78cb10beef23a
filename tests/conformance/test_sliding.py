"""WeDLM's loop held against one written out plainly over transformers' networks; there are no recordings of it."""

from pathlib import Path

import numpy as np
import pytest

from lopa.runtime.bundle import Bundle
from lopa.runtime.generation_config import GenerationConfig
from tests.conformance.plain_loops import NEAR_TIE, wedlm
from tests.conformance.small_networks import END, MASK, SmallNetwork
from tests.export.layer_kinds import LayerKind

SHAPES = {"7B": LayerKind(True, False, 8), "8B": LayerKind(False, True, 12)}
LENGTHS = [1, 2, 3, 5, 8, 11, 14, 15, 16, 17, 18, 23, 31, 32, 33, 40]


def sliding(**options: object) -> GenerationConfig:
    own = {"strategy": "threshold", "alignment": "sliding", "window": "causal", "block_size": 16, **options}
    return GenerationConfig.from_mapping(own)


@pytest.fixture(scope="module", params=SHAPES)
def network(request: pytest.FixtureRequest, tiny_bundle: Path) -> SmallNetwork:
    return SmallNetwork(SHAPES[request.param], Bundle.open(tiny_bundle).manifest, sharpness=3)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 24, length).tolist() for length in LENGTHS for _ in range(2)]


@pytest.mark.parametrize(("new", "cut"), [(40, True), (29, False)])
def test_every_step_is_that_of_the_plain_loop(network: SmallNetwork, new: int, cut: bool) -> None:
    compared = near_ties = ends = 0
    several = 0
    for prompt in prompts():
        answer, plain = wedlm(network.network, prompt, new=new, mask=MASK, end=END, cut=cut)
        ours, steps = network.decode(prompt, sliding(max_new_tokens=new, drop_after_eos=cut))
        for expected, step in zip(plain, steps, strict=False):
            if expected.margin < NEAR_TIE:
                near_ties += 1
                break
            own = len(prompt) if step.number == 1 else 0  # the prompt's rows, which the plain loop counts as there
            assert step.windows.positions[0].tolist()[own:] == expected.rows
            assert step.windows.commit == own + expected.committed
            assert dict(zip(step.fills.positions.tolist(), step.fills.tokens.tolist(), strict=True)) == expected.fills
            compared += 1
            several += len(expected.fills) > 1
        else:
            assert len(plain) == len(steps)
            assert ours == answer
            ends += answer[-1] == END
    assert near_ties <= 2
    assert compared > 300
    assert several > 50  # both rules are used: all below the threshold, and the best
    assert 0 < ends < len(prompts())
