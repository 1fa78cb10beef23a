"""Simulation of one load with clients, a router, and replicas that may fail. The result is deterministic for a seed."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import simpy

from lopa.bench.fleet.arrivals import arrival_gaps, prompt_numbers
from lopa.bench.fleet.decodes import RecordedDecode
from lopa.bench.fleet.replica import Replica, ReplicaTotals, SimulatedRequest
from lopa.bench.fleet.round_costs import SimulatedCosts
from lopa.bench.fleet.scenario import Failures, Material, Prompts, Retry, Routing

_SPREAD = 2654435761
"""Multiplier of the prompt hash, odd and near 2**32 / golden ratio. It spreads consecutive prompts."""


@dataclass(frozen=True)
class FleetRun:
    """Result of a simulation."""

    requests: Sequence[SimulatedRequest]
    """Requests in order of arrival."""
    replicas: Sequence[ReplicaTotals]


def simulate_fleet(material: Material, costs: SimulatedCosts, load: float, branches: int) -> FleetRun:
    """Simulate one load, in requests per second, with a number of branches.

    Arrivals, prompts, routing and failures have their own random generators. The clients are therefore the same for
    every number of branches.
    """
    fleet = _Fleet(material, costs, branches)
    fleet.run(load)
    return FleetRun(fleet.requests, [replica.totals for replica in fleet.replicas])


class _Fleet:
    def __init__(self, material: Material, costs: SimulatedCosts, branches: int) -> None:
        self._material, self._scenario = material, material.scenario
        self._env = simpy.Environment()
        seeds = np.random.SeedSequence(self._scenario.seed).spawn(5)
        self._arrival_rng, self._prompt_rng, routing, self._retry_rng, self._failure_rng = map(
            np.random.default_rng, seeds
        )
        self._branches = branches
        self.requests: list[SimulatedRequest] = []
        self.replicas = [
            Replica(number, self._env, self._scenario, costs, self._decode) for number in range(self._scenario.replicas)
        ]
        self._router = Router(self.replicas, self._scenario.routing, routing)

    def run(self, load: float) -> None:
        self._env.process(self._send_requests(load))
        if self._scenario.failures is not None:
            for replica in self.replicas:
                self._env.process(self._fail_repeatedly(replica, self._scenario.failures))
        self._env.run(until=self._scenario.seconds)

    def _decode(self, request: SimulatedRequest) -> RecordedDecode:
        return self._material.decodes.of(request.recorded, self._branches)

    def _send_requests(self, load: float) -> Generator[simpy.Event, None, None]:
        recorded = len(self._material.decodes.prompts)
        prompts: Iterator[int] = prompt_numbers(self._scenario.prompts or Prompts(different=recorded), self._prompt_rng)
        for gap in arrival_gaps(self._scenario.arrivals, load, self._arrival_rng):
            yield self._env.timeout(gap)
            prompt = next(prompts)
            request = SimulatedRequest(prompt, prompt % recorded, self._env.now)
            self.requests.append(request)
            self._send(request)

    def _send(self, request: SimulatedRequest) -> None:
        """Send the request to a replica, or back to the client if the replica is full."""
        replica = self._router.replica_for(request.prompt)
        request.replica = None if replica is None else replica.number
        if replica is not None and replica.has_capacity:
            replica.enqueue(request)
            return
        request.refusals += 1
        retry = self._scenario.retry
        if retry is None or request.refusals > retry.times:
            request.outcome, request.ended = "refused", self._env.now
        else:
            self._env.process(self._retry(request, retry))

    def _retry(self, request: SimulatedRequest, retry: Retry) -> Generator[simpy.Event, None, None]:
        yield self._env.timeout(retry.after_seconds * self._retry_rng.uniform(0.5, 1.5))
        self._send(request)

    def _fail_repeatedly(self, replica: Replica, failures: Failures) -> Generator[simpy.Event, None, None]:
        while True:
            yield self._env.timeout(self._failure_rng.exponential(failures.mean_seconds_between))
            dropped = replica.fail()
            for request in dropped:
                if failures.again:
                    request.restarts += 1
                    self._send(request)
                else:
                    request.outcome, request.ended = "lost", self._env.now
            yield self._env.timeout(failures.repair_seconds)
            replica.repair()


class Router:
    """Router that distributes requests to the replicas that are up. It notices failures immediately."""

    def __init__(self, replicas: Sequence[Replica], routing: Routing, rng: np.random.Generator) -> None:
        self._replicas, self._rng, self._turn = replicas, rng, -1
        policies: dict[Routing, Callable[[list[Replica], int], Replica]] = {
            "random": self._random,
            "turns": self._next,
            "least loaded": self._least_loaded,
            "affine": self._home,
        }
        self._choose = policies[routing]

    def replica_for(self, prompt: int) -> Replica | None:
        """Return the replica for a prompt, which may be full, or None if no replica is up."""
        up = [replica for replica in self._replicas if replica.up]
        return self._choose(up, prompt) if up else None

    def _random(self, up: list[Replica], _: int) -> Replica:
        return up[int(self._rng.integers(len(up)))]

    def _next(self, up: list[Replica], _: int) -> Replica:
        self._turn += 1
        return up[self._turn % len(up)]

    def _least_loaded(self, up: list[Replica], _: int) -> Replica:
        return min(up, key=lambda replica: replica.requests)

    def _home(self, _: list[Replica], prompt: int) -> Replica:
        """Return the prompt's home replica, or its successor if the home is full or down."""
        first = prompt * _SPREAD % 2**32 * len(self._replicas) >> 32
        ring = [*self._replicas[first:], *self._replicas[:first]]
        home, neighbour = _first_two(ring)
        return home if home.has_capacity else neighbour


def _first_two(ring: Sequence[Replica]) -> tuple[Replica, Replica]:
    """Return the first two replicas that are up, or the only one."""
    up = [replica for replica in ring if replica.up]
    return up[0], up[min(1, len(up) - 1)]
