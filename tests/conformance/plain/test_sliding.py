"""WeDLM's loop, compared with a plain version over transformers' networks; there are no recordings of it."""

from pathlib import Path

import numpy as np
import pytest
from tests.conformance.plain.sliding_loop import NEAR_TIE, keys_of_causal_pass, wedlm
from tests.conformance.plain.small_networks import END, MASK, SmallNetwork
from tests.export.layer_kinds import LayerKind
from tests.lone_decode import LoneDecode

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Floats
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import GenerationConfig

SHAPES = {"7B": LayerKind(True, False, 8), "8B": LayerKind(False, True, 12)}
LENGTHS = [1, 2, 3, 5, 8, 11, 14, 15, 16, 17, 18, 23, 31, 32, 33, 40]


def sliding(**options: object) -> GenerationConfig:
    own = {"strategy": "threshold", "alignment": "sliding", "attention": "causal", "block_size": 16, **options}
    return GenerationConfig.from_mapping(own)


@pytest.fixture(scope="module", params=SHAPES)
def network(request: pytest.FixtureRequest, tiny_bundle: Path) -> SmallNetwork:
    return SmallNetwork(SHAPES[request.param], Bundle.open(tiny_bundle).manifest, sharpness=3)


def prompts(each: int) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 24, length).tolist() for length in LENGTHS for _ in range(each)]


@pytest.mark.parametrize(("new", "cut", "lookaheads", "each"), [(40, True, 0, 1), (29, False, 0, 1), (18, True, 4, 1)])
def test_every_step_matches_the_plain_loop(
    network: SmallNetwork, new: int, cut: bool, lookaheads: int, each: int
) -> None:
    compared = near_ties = ends = several = other_winners = 0
    looks = {"strategy": "lopa", "branches": lookaheads + 1} if lookaheads else {}
    for prompt in prompts(each):
        answer, plain = wedlm(network.network, prompt, new=new, mask=MASK, end=END, cut=cut, lookaheads=lookaheads)
        ours, steps = network.decode(prompt, sliding(max_new_tokens=new, drop_after_eos=cut, **looks))
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
    print(f"{compared} steps, {near_ties} near-ties, {several} several, {other_winners} lookaheads won, {ends} ends")
    assert near_ties <= len(prompts(each)) // 4
    assert compared > 50
    assert several > 20  # both rules occur: all positions below the threshold, and the best one
    assert ends < len(prompts(each))
    assert ends or new < 30
    assert (other_winners > 0) == (lookaheads > 0)


@pytest.mark.parametrize("branches", [1, 3])
def test_committed_rows_equal_one_causal_pass_over_the_answer(network: SmallNetwork, branches: int) -> None:
    """This holds for any masks at the time when a row was computed, and for any branch that computed it."""
    for prompt in prompts(1)[::4]:
        keys: list[Floats] = []

        def record_keys(decoding: LoneDecode, step: Step, keys: list[Floats] = keys) -> None:
            if step.rows.commit:
                keys.append(decoding.read_rows(step.winner, step.rows.commit).layers[-2])

        config = sliding(strategy="lopa", branches=branches, max_new_tokens=48, stop_at_eos=False)
        answer, steps = network.decode(prompt, config, record_keys)
        committed = np.concatenate(keys, axis=1)
        assert committed.shape[1] > len(prompt) + 20
        text = [*prompt, *answer][: committed.shape[1]]
        np.testing.assert_allclose(committed, keys_of_causal_pass(network.network, text).numpy(), atol=3e-5)
        rows = [max(step.rows.lengths) for step in steps[1:]]
        assert max(rows) > 16  # committed rows next to a whole block


def test_threshold_and_penalty_are_options(network: SmallNetwork) -> None:
    prompt = prompts(1)[5]
    for threshold, penalty in ((1.5, 0.0), (0.05, 0.3)):
        answer, plain = wedlm(
            network.network, prompt, new=33, mask=MASK, end=END, window=8, threshold=threshold, penalty=penalty
        )
        config = sliding(max_new_tokens=33, block_size=8, entropy_threshold=threshold, distance_penalty=penalty)
        ours, steps = network.decode(prompt, config)
        assert min(step.margin for step in plain) > NEAR_TIE
        assert ours == answer
        assert [len(step.unmasked.positions) for step in steps] == [len(each.written) for each in plain]
