"""Bundles of the families without recordings, from checkpoint to answer: batch mates, devices."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.requests.batch_mates import alone, result_of

from lopa.runtime import BadInputError, Decoder, Engine, GenerationConfig
from lopa.runtime.bundle import Bundle
from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import check_effects


def some_config(rng: np.random.Generator, decoder: Decoder) -> GenerationConfig:
    """Return a random configuration of a sliding block, for an answer of at most 40 positions."""
    strategy = str(rng.choice(["lopa", "lopa", "threshold", "vanilla", "sequential", "d2f"]))
    return decoder.config(
        strategy=strategy,
        branches=int(rng.integers(1, 6)) if strategy == "lopa" else None,
        block_size=int(rng.choice([1, 5, 16, 32])),
        entropy_threshold=float(rng.choice([0.4, 1.5, 2.2])),
        distance_penalty=float(rng.choice([0.0, 0.02, 0.2])),
        max_new_tokens=int(rng.integers(1, 41)),
        temperature=float(rng.choice([0.0, 0.0, 0.2, 1.0])),
        seed=int(rng.integers(0, 100)),
        stop_at_eos=bool(rng.random() < 0.5),
        drop_after_eos=bool(rng.random() < 0.5),
    )


def some_mix(seed: int, decoder: Decoder) -> list[tuple[list[int], GenerationConfig]]:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(3, 24, int(rng.choice([1, 15, 16, 17, 40]))).tolist() for _ in range(10)]
    return [(prompt, some_config(rng, decoder)) for prompt in prompts]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_batch_gives_the_results_of_single_decodes(wedlm: Bundle, seed: int) -> None:
    """Compare decodes alone, batched in an engine, in numpy, and with branches over two devices."""
    with Decoder.open(wedlm.path, threads=1) as decoder:
        asked = some_mix(seed, decoder)
        expected = [alone(decoder, *each) for each in asked]
        with Engine(decoder, max_num_seqs=4, queue_limit=100) as engine, ThreadPoolExecutor(3) as threads:
            handles = list(threads.map(lambda each: engine.submit(*each), asked))
            assert [result_of(handle) for handle in handles] == expected
    for devices in (["cpu:0", "cpu:1"], ["numpy"]):
        with Decoder.open(wedlm.path, devices, threads=1) as decoder:
            assert [alone(decoder, *each).token_ids for each in asked] == [each.token_ids for each in expected]


VALUES = {
    "skip_threshold": (0.02, 0.5),
    "block_add_threshold": (0.0, 0.9),
    "decoded_token_threshold": (0.02, 1.0),
    "entropy_threshold": (0.01, 3.0, 8.0),
    "distance_penalty": (0.0, 5.0),
}


@pytest.mark.parametrize("strategy", ["d2f", "klass", "vanilla", "sequential", "eb", "top_n", "factor"])
def test_options_without_effect_on_sliding_blocks_are_refused(wedlm: Bundle, strategy: str) -> None:
    with Decoder.open(wedlm.path, threads=1) as decoder:

        def answers(**options: float) -> list[tuple[tuple[int, ...], int]]:
            config = decoder.config(strategy=strategy, block_size=8, max_new_tokens=24, **options)
            return [(each.token_ids, each.steps) for each in decoder.generate([[5, 6, 7], [9], [12, 4]], config)]

        resolved, usual = decoder.config(strategy=strategy), answers()
        for name, values in VALUES.items():
            has_effect = any(answers(**{name: value}) != usual for value in values)
            with nullcontext() if has_effect else pytest.raises(BadInputError, match=f"combine {name} 1.0"):
                check_effects({name: 1.0}, decoder.resolve(resolved).options)


def test_rows_that_branches_share_change_no_token(wedlm: Bundle) -> None:
    """Check shared rows of unmasked tokens before a lookahead; rows of masks are not shared."""
    steps: list[Step] = []
    with Decoder.open(wedlm.path, threads=1) as decoder:
        for prompt, config in some_mix(7, decoder):
            apart, once = (
                deque(decoder.stream(prompt, replace(config, deduplicate_rows=on), on_step=heard), maxlen=1)[0]
                for on, heard in ((False, None), (True, steps.append))
            )
            assert once.result.token_ids == apart.result.token_ids
    assert sum(len(step.rows.lengths) < len(step.branches) for step in steps) > 5


def test_models_whose_rows_predict_the_next_position_do_not_slide(fast_dllm_v2: Bundle) -> None:
    with Decoder.open(fast_dllm_v2.path, threads=1) as decoder:
        config = decoder.config(alignment="sliding", attention="causal", confidence="neg_entropy")
        with pytest.raises(BadInputError, match="alignment 'sliding' for a bundle of architecture 'fast-dllm-v2'"):
            decoder.generate([[5]], config)
