"""Arrival times and prompts of the simulated requests.

The functions change nothing except the state of the given random generator.
"""

from collections.abc import Iterator

import numpy as np

from lopa.bench.fleet.scenario import Arrivals, Prompts

_BATCH = 4096
"""Random numbers drawn per batch."""


def arrival_gaps(arrivals: Arrivals, load: float, rng: np.random.Generator) -> Iterator[float]:
    """Yield the seconds between requests, independent, with mean 1 / `load` requests per second.

    The gaps are gamma distributed. Variation 1 is the exponential distribution of a Poisson process. Larger values give
    bursts and long gaps.
    """
    shape = 1.0 if arrivals.variation is None else arrivals.variation**-2
    while True:
        yield from rng.gamma(shape, 1 / (shape * load), _BATCH).tolist()


def prompt_numbers(prompts: Prompts, rng: np.random.Generator) -> Iterator[int]:
    """Yield the indices of requested prompts, from 0, without end."""
    weights = np.arange(1, prompts.different + 1, dtype=np.float64) ** -prompts.popularity
    cumulative = np.cumsum(weights)
    while True:
        yield from np.searchsorted(cumulative, rng.random(_BATCH) * cumulative[-1], side="right").tolist()
