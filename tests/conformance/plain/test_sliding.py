"""WeDLM's loop, compared with a plain version over plain networks; there are no recordings of it."""

from pathlib import Path

import numpy as np
import pytest
from tests.conformance.plain.sliding_loop import NEAR_TIE, wedlm
from tests.conformance.plain.test_plain_caches import END, MASK, Model, model_of
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import GenerationConfig

LENGTHS = [1, 2, 3, 5, 8, 11, 14, 15, 16, 17, 18, 23, 31, 32, 33, 40]


def sliding(**options: object) -> GenerationConfig:
    own = {"strategy": "threshold", "alignment": "sliding", "attention": "causal", "block_size": 16, **options}
    return GenerationConfig.from_mapping(own)


@pytest.fixture(scope="module", params=["dream, fast_dllm_v2", "sdar"])
def model(request: pytest.FixtureRequest, tiny_bundle: Path) -> Model:
    """Return a random model with the layers of WeDLM's 7B (biases) or 8B (norms)."""
    return model_of(Bundle.open(tiny_bundle).manifest, request.param, shift=0, seed=8)


def decode(model: Model, prompt: list[int], config: GenerationConfig) -> tuple[list[int], list[Step]]:
    """Return the answer, up to an end of text, and the steps."""
    decoding = LoneDecode(model.session, np.array(prompt), params_of(config), model.manifest)
    steps = decoding.run()
    return decoding.answer.committed.tolist(), steps


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 24, length).tolist() for length in LENGTHS]


@pytest.mark.parametrize(
    ("new", "cut", "lookaheads", "rule"),
    [
        (40, True, 0, {}),
        (29, False, 0, {}),
        (18, True, 4, {}),
        (33, True, 0, {"window": 8, "threshold": 1.5, "penalty": 0.0}),
        (33, True, 0, {"window": 8, "threshold": 0.05, "penalty": 0.3}),
    ],
)
def test_every_step_matches_the_plain_loop(
    model: Model, new: int, cut: bool, lookaheads: int, rule: dict[str, float]
) -> None:
    own_names = {"window": "block_size", "threshold": "entropy_threshold", "penalty": "distance_penalty"}
    own_rule = {own_names[name]: value for name, value in rule.items()}
    compared = near_ties = ends = several = other_winners = 0
    looks = {"strategy": "lopa", "branches": lookaheads + 1} if lookaheads else {}
    chosen = prompts()[5:6] if rule else prompts()
    for prompt in chosen:
        answer, plain = wedlm(model.plain, prompt, new=new, mask=MASK, end=END, cut=cut, lookaheads=lookaheads, **rule)
        ours, steps = decode(model, prompt, sliding(max_new_tokens=new, drop_after_eos=cut, **looks, **own_rule))
        for expected, step in zip(plain, steps, strict=False):
            if expected.margin < NEAR_TIE:
                near_ties += 1
                break
            own = len(prompt) if step.number == 1 else 0  # the prompt's rows, which the plain loop counts as cached
            windows = np.split(step.rows.positions, np.cumsum(step.rows.lengths)[:-1])
            assert [rows[own:].tolist() for rows in windows] == expected.rows
            assert step.rows.commit == own + expected.committed
            assert step.winner == expected.winner
            assert (
                dict(zip(step.unmasked.positions.tolist(), step.unmasked.tokens.tolist(), strict=True))
                == expected.written
            )
            compared += 1
            several += len(expected.written) > 1
            other_winners += expected.winner < len(expected.rows) - 1
        else:
            assert len(plain) == len(steps)
            assert ours == answer
            ends += answer[-1] == END
    assert near_ties <= len(chosen) // 4
    if not rule:
        assert compared > 50
        assert several > 20  # both rules occur: all positions below the threshold, and the best one
        assert ends < len(chosen)
        assert ends or new < 30
        assert (other_winners > 0) == (lookaheads > 0)
