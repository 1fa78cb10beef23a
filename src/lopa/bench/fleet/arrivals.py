"""When requests come and which prompts they ask. Pure but for the generator that is given."""

from collections.abc import Iterator

import numpy as np

from lopa.bench.fleet.scenario import Arrivals, Prompts

_DRAWN = 4096
"""At a time."""


def gaps(arrivals: Arrivals, load: float, rng: np.random.Generator) -> Iterator[float]:
    """Seconds between requests, without end: independent, of mean 1 / `load` requests a second.

    Gamma distributed: with variation 1 that is the exponential distribution of a Poisson process, with more many come
    together and then none for long.
    """
    shape = 1.0 if arrivals.variation is None else arrivals.variation**-2
    while True:
        yield from rng.gamma(shape, 1 / (shape * load), _DRAWN).tolist()


def prompt_numbers(prompts: Prompts, rng: np.random.Generator) -> Iterator[int]:
    """Which of the different prompts is asked, counted from 0, without end."""
    weights = np.arange(1, prompts.different + 1, dtype=np.float64) ** -prompts.popularity
    upto = np.cumsum(weights)
    while True:
        yield from np.searchsorted(upto, rng.random(_DRAWN) * upto[-1], side="right").tolist()
