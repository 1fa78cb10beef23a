"""Time of decoding steps, and the host's share of it: everything outside the session's forward.

The number of steps is fixed, so the measurement also works for models with random weights.
"""

import statistics
from dataclasses import dataclass

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Int64
from lopa.runtime.decoding.lopa_loop import LopaLoop
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.requests.running_loop import RequestCache, RunningLoop
from lopa.runtime.sessions.session import Session

_CONFIG = GenerationConfig(branches=4, max_new_tokens=128, stop_at_eos=False)
_PROMPTS = 3
_PROMPT_ROWS = 100
_STEPS = 24
"""Steps per prompt. The first step computes the prompt and does not count."""


@dataclass(frozen=True)
class StepTimes:
    """Times over all counted steps."""

    steps: int
    branches: int
    """Maximum branches of a step."""
    median: float
    """Median seconds of a step."""
    forward_median: float
    """Median seconds of a forward, including the transfer of the statistics to the host."""
    steps_per_second: float
    host_share: float
    """Median over the steps of 1 - forward / step. In a ratio of sums, one slow forward would outweigh the host's time.
    """


def measure_steps(session: Session, manifest: Manifest) -> StepTimes:
    """Decode a few random prompts on `session`, each after a warm-up decode of the same prompt."""
    rng = np.random.default_rng(0)
    seconds: list[dict[str, float]] = []
    branches = 0
    for _ in range(_PROMPTS):
        prompt = _random_prompt(manifest, rng)
        _steps_of_prompt(session, manifest, prompt)  # warm-up: engines cache data for every size
        for count, step in _steps_of_prompt(session, manifest, prompt):
            branches = max(branches, count)
            seconds.append(step)
    totals, forwards = [sum(step.values()) for step in seconds], [step["forward"] for step in seconds]
    return StepTimes(
        steps=len(seconds),
        branches=branches,
        median=statistics.median(totals),
        forward_median=statistics.median(forwards),
        steps_per_second=len(totals) / sum(totals),
        host_share=statistics.median(1 - forward / total for forward, total in zip(forwards, totals, strict=True)),
    )


def _steps_of_prompt(session: Session, manifest: Manifest, prompt: Int64) -> list[tuple[int, dict[str, float]]]:
    """Return the branches and the seconds by phase of every step but the first."""
    running = RunningLoop(LopaLoop(resolve(_CONFIG), manifest, prompt), RequestCache(session))
    steps: list[tuple[int, dict[str, float]]] = []
    try:
        while running.loop.answer.stop_reason is None and len(steps) < _STEPS:
            step = running.step()
            steps.append((len(step.branches), step.seconds))
    finally:
        running.cache.release()
    return steps[1:]


def _random_prompt(manifest: Manifest, rng: np.random.Generator) -> Int64:
    """Return random tokens that are not special, since a mask token in the prompt would be unmasked."""
    special = manifest.special_tokens
    ids = np.setdiff1d(
        np.arange(manifest.dimensions.vocab_size), [special.mask, special.eos, special.pad, special.bos or 0]
    )
    return rng.choice(ids, _PROMPT_ROWS)
