"""Steps of a decode and the host's share of them: everything that is not the session's forward.

A fixed number of steps, so that it also serves models whose text means nothing. Does not make text.
"""

import statistics
from dataclasses import dataclass

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Int64
from lopa.runtime.decoding.decoding import Decoding
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.sessions.session import Session, unused_request

_CONFIG = GenerationConfig(branches=4, max_new_tokens=128, stop_at_eos=False)
_PROMPTS = 3
_PROMPT_ROWS = 100
_STEPS = 24
"""Of each prompt, its first one, which computes the prompt, not counted."""


@dataclass(frozen=True)
class StepTimes:
    """Of all counted steps together."""

    steps: int
    branches: int
    """At most, in one step."""
    median: float
    """Seconds of a step."""
    forward_median: float
    """Seconds of Session.forward in it, which includes the way of the statistics to the host."""
    steps_per_second: float
    host_share: float
    """Median over the steps of 1 - forward / step: a single slow forward would flatter a share of the sums."""


def measured_steps(session: Session, manifest: Manifest) -> StepTimes:
    """Decode a few random prompts on `session`, each of them once before without counting."""
    rng = np.random.default_rng(0)
    seconds: list[dict[str, float]] = []
    branches = 0
    for _ in range(_PROMPTS):
        prompt = _random_prompt(manifest, rng)
        _steps_of_prompt(session, manifest, prompt)  # the same steps: it pays for what engines keep for every size
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
    """Branches, and seconds by phase, of every step but the first."""
    request = unused_request()
    decoding = Decoding(session, request, prompt, resolve(_CONFIG), manifest)
    steps: list[tuple[int, dict[str, float]]] = []
    try:
        while decoding.stop_reason is None and len(steps) < _STEPS:
            step = decoding.step()
            steps.append((len(step.branches), step.seconds))
    finally:
        session.release(request)
    return steps[1:]


def _random_prompt(manifest: Manifest, rng: np.random.Generator) -> Int64:
    """Tokens without the special ones: a mask in it would be decoded."""
    special = manifest.special_tokens
    ids = np.setdiff1d(
        np.arange(manifest.dimensions.vocab_size), [special.mask, special.eos, special.pad, special.bos or 0]
    )
    return rng.choice(ids, _PROMPT_ROWS)
