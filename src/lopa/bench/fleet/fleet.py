"""One load on a fleet: clients ask, a router deals, replicas answer and fail. Same seed, same result."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import simpy

from lopa.bench.fleet.arrivals import gaps, prompt_numbers
from lopa.bench.fleet.costs import RoundCosts
from lopa.bench.fleet.decodes import RecordedDecode
from lopa.bench.fleet.replica import Asked, Replica, Work
from lopa.bench.fleet.scenario import Failures, Material, Prompts, Retry, Routing

_SPREAD = 2654435761
"""An odd number near 2**32 over the golden ratio, by which prompts with numbers in a row get replicas far apart."""


@dataclass(frozen=True)
class Simulated:
    """Everything that happened."""

    requests: Sequence[Asked]
    """In the order in which they came."""
    replicas: Sequence[Work]


def simulated(material: Material, costs: RoundCosts, load: float, branches: int) -> Simulated:
    """One load, in requests a second, with a number of branches.

    The clients are the same for every number of branches: arrivals, prompts, routing and failures have generators of
    their own.
    """
    fleet = _Fleet(material, costs, branches)
    fleet.run(load)
    return Simulated(fleet.requests, [replica.work for replica in fleet.replicas])


class _Fleet:
    def __init__(self, material: Material, costs: RoundCosts, branches: int) -> None:
        self._material, self._scenario = material, material.scenario
        self._env = simpy.Environment()
        seeds = np.random.SeedSequence(self._scenario.seed).spawn(5)
        self._arriving, self._asking, routing, self._retrying, self._failing = map(np.random.default_rng, seeds)
        self._branches = branches
        self.requests: list[Asked] = []
        self.replicas = [
            Replica(number, self._env, self._scenario, costs, self._decode) for number in range(self._scenario.replicas)
        ]
        self._router = Router(self.replicas, self._scenario.routing, routing)

    def run(self, load: float) -> None:
        self._env.process(self._clients(load))
        if self._scenario.failures is not None:
            for replica in self.replicas:
                self._env.process(self._fails(replica, self._scenario.failures))
        self._env.run(until=self._scenario.seconds)

    def _decode(self, asked: Asked) -> RecordedDecode:
        return self._material.decodes.of(asked.recorded, self._branches)

    def _clients(self, load: float) -> Generator[simpy.Event, None, None]:
        recorded = len(self._material.decodes.prompts)
        prompts: Iterator[int] = prompt_numbers(self._scenario.prompts or Prompts(different=recorded), self._asking)
        for gap in gaps(self._scenario.arrivals, load, self._arriving):
            yield self._env.timeout(gap)
            prompt = next(prompts)
            asked = Asked(prompt, prompt % recorded, self._env.now)
            self.requests.append(asked)
            self._send(asked)

    def _send(self, asked: Asked) -> None:
        """To a replica, or back to the client where it has no place."""
        replica = self._router.replica_for(asked.prompt)
        asked.replica = None if replica is None else replica.number
        if replica is not None and replica.has_place:
            replica.take(asked)
            return
        asked.refusals += 1
        retry = self._scenario.retry
        if retry is None or asked.refusals > retry.times:
            asked.outcome, asked.ended = "refused", self._env.now
        else:
            self._env.process(self._asks_again(asked, retry))

    def _asks_again(self, asked: Asked, retry: Retry) -> Generator[simpy.Event, None, None]:
        yield self._env.timeout(retry.after_seconds * self._retrying.uniform(0.5, 1.5))
        self._send(asked)

    def _fails(self, replica: Replica, failures: Failures) -> Generator[simpy.Event, None, None]:
        while True:
            yield self._env.timeout(self._failing.exponential(failures.mean_seconds_between))
            held = replica.fail()
            for asked in held:
                if failures.again:
                    asked.restarts += 1
                    self._send(asked)
                else:
                    asked.outcome, asked.ended = "lost", self._env.now
            yield self._env.timeout(failures.repair_seconds)
            replica.repair()


class Router:
    """Deals requests to the replicas that are up; it hears of failures at once."""

    def __init__(self, replicas: Sequence[Replica], routing: Routing, rng: np.random.Generator) -> None:
        self._replicas, self._rng, self._turn = replicas, rng, -1
        ways: dict[Routing, Callable[[list[Replica], int], Replica]] = {
            "random": self._random,
            "turns": self._next,
            "least loaded": self._least_loaded,
            "affine": self._at_home,
        }
        self._way = ways[routing]

    def replica_for(self, prompt: int) -> Replica | None:
        """It may be full; None: none is up."""
        up = [replica for replica in self._replicas if replica.up]
        return self._way(up, prompt) if up else None

    def _random(self, up: list[Replica], _: int) -> Replica:
        return up[int(self._rng.integers(len(up)))]

    def _next(self, up: list[Replica], _: int) -> Replica:
        self._turn += 1
        return up[self._turn % len(up)]

    def _least_loaded(self, up: list[Replica], _: int) -> Replica:
        return min(up, key=lambda replica: replica.requests)

    def _at_home(self, _: list[Replica], prompt: int) -> Replica:
        """The replica of this prompt, or the one behind it while that is full or down."""
        first = prompt * _SPREAD % 2**32 * len(self._replicas) >> 32
        ring = [*self._replicas[first:], *self._replicas[:first]]
        home, neighbour = _first_two(ring)
        return home if home.has_place else neighbour


def _first_two(ring: Sequence[Replica]) -> tuple[Replica, Replica]:
    """That are up, of which there is one at least."""
    up = [replica for replica in ring if replica.up]
    return up[0], up[min(1, len(up) - 1)]
