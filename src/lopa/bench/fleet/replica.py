"""A simulated replica that batches requests as lopa.runtime.engine does.

Waiting requests join at the next round if fewer than the maximum run, and leave after their last step. SimulatedCosts
has the seconds of a round.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal

import simpy

from lopa.bench.fleet.decodes import RecordedDecode
from lopa.bench.fleet.round_costs import Round, SimulatedCosts
from lopa.bench.fleet.scenario import Scenario
from lopa.runtime.requests.admission import Admission

RequestOutcome = Literal["on its way", "answered", "refused", "lost"]


@dataclass(eq=False)
class SimulatedRequest:
    """A client's request. Times are in simulated seconds."""

    prompt: int
    """Index of the prompt. Equal indices mean equal texts."""
    recorded: int
    """Index of the recorded prompt that represents it."""
    arrived: float
    replica: int | None = None
    """Replica that the request was last sent to, or None if no replica was up."""
    outcome: RequestOutcome = "on its way"
    started: float | None = None
    """Time of its last start."""
    ended: float | None = None
    decode: RecordedDecode | None = None
    """Decode chosen at its start."""
    refusals: int = 0
    restarts: int = 0
    step: int = 0
    known: bool = False
    """True if its prompt rows were cached."""


Decode = Callable[[SimulatedRequest], RecordedDecode]
"""Function that returns the recorded decode of a request."""


@dataclass
class ReplicaTotals:
    """Totals of a replica."""

    rounds: int = 0
    forward_seconds: float = 0.0
    host_seconds: float = 0.0
    rows: int = 0
    """Rows of all forwards, including padding."""
    steps: int = 0
    """Steps of all requests."""
    down_seconds: float = 0.0

    @property
    def busy_seconds(self) -> float:
        """Seconds spent in rounds."""
        return self.forward_seconds + self.host_seconds


@dataclass
class PromptRows:
    """Cache of prompt rows that evicts the least recently used prompt."""

    max_rows: int
    _rows: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _total: int = 0

    def __contains__(self, prompt: int) -> bool:
        return prompt in self._rows

    def use(self, prompt: int) -> bool:
        """Mark the prompt as most recently used, and return True if it is cached."""
        if prompt in self._rows:
            self._rows.move_to_end(prompt)
        return prompt in self._rows

    def add(self, prompt: int, rows: int) -> None:
        """Add the prompt's rows if they fit."""
        if 0 < rows <= self.max_rows and prompt not in self._rows:
            self._rows[prompt] = rows
            self._total += rows
        while self._total > self.max_rows:
            self._total -= self._rows.popitem(last=False)[1]

    def clear(self) -> None:
        """Remove all prompts."""
        self._rows.clear()
        self._total = 0


class Replica:
    """A replica; `decode` returns the decode of a request that starts."""

    def __init__(
        self, number: int, env: simpy.Environment, scenario: Scenario, costs: SimulatedCosts, decode: Decode
    ) -> None:
        self.number = number
        self.totals = ReplicaTotals()
        self.up = True
        self._env, self._costs, self._decode = env, costs, decode
        self._slots, self._capacity = scenario.slots, scenario.slots + scenario.queue
        self._max_num_batched_tokens = scenario.max_num_batched_tokens
        self._waiting: deque[SimulatedRequest] = deque()
        self._running: list[SimulatedRequest] = []
        self._prompts = PromptRows(scenario.prefix_cache_tokens)
        self._failed = 0.0
        self._start()

    @property
    def requests(self) -> int:
        """Number of running and waiting requests."""
        return len(self._running) + len(self._waiting)

    @property
    def has_capacity(self) -> bool:
        """True if the replica accepts another request."""
        return self.up and self.requests < self._capacity

    def enqueue(self, request: SimulatedRequest) -> None:
        """Enqueue a request. The replica must have capacity."""
        self._waiting.append(request)
        if not self._wake_up.triggered:
            self._wake_up.succeed()

    def fail(self) -> list[SimulatedRequest]:
        """Stop immediately, and return the running and waiting requests, in order."""
        dropped = [*self._running, *self._waiting]
        self.up, self._failed = False, self._env.now
        self._running, self._waiting = [], deque()
        self._prompts.clear()
        self._rounds.interrupt()
        return dropped

    def repair(self) -> None:
        """Resume without requests."""
        self.up = True
        self.totals.down_seconds += self._env.now - self._failed
        self._start()

    def _start(self) -> None:
        self._admission = Admission(self._max_num_batched_tokens)
        self._wake_up = self._env.event()
        self._rounds = self._env.process(self._run())

    def _run(self) -> Generator[simpy.Event, None, None]:
        try:
            while True:
                if not self.requests:
                    self._wake_up = self._env.event()
                    yield self._wake_up
                self._admit()
                current = self._round()
                yield self._env.timeout(current.seconds)
                self._finish(current)
        except simpy.Interrupt:
            return

    def _admit(self) -> None:
        free = self._slots - len(self._running)
        rows = [self._rows_to_compute(request) for request in list(self._waiting)[:free]]
        for _ in range(self._admission.number_joining(rows, nothing_runs=not self._running)):
            request = self._waiting.popleft()
            request.decode = self._decode(request)
            request.started, request.step = self._env.now, 0
            request.known = self._prompts.use(request.prompt)
            self._running.append(request)

    def _rows_to_compute(self, request: SimulatedRequest) -> int:
        return 0 if request.prompt in self._prompts else self._decode(request).prompt

    def _round(self) -> Round:
        shapes, branches = [], []
        for request in self._running:
            assert request.decode is not None
            known = request.known and not request.step
            shapes.append(request.decode.shape_of_known_prompt if known else request.decode.shapes[request.step])
            branches.append(request.decode.steps[request.step].branches)
        joining = sum(not request.step for request in self._running)
        return self._costs.round_of(shapes, branches, joining)

    def _finish(self, ended: Round) -> None:
        self.totals.rounds += 1
        self.totals.forward_seconds += ended.forward
        self.totals.host_seconds += ended.host
        self.totals.rows += ended.rows
        self.totals.steps += len(self._running)
        left = []
        for request in self._running:
            assert request.decode is not None
            if not request.step:
                self._prompts.add(request.prompt, request.decode.prompt_rows)
            request.step += 1
            if request.step < len(request.decode.steps):
                left.append(request)
            else:
                request.outcome, request.ended = "answered", self._env.now
        self._running = left
