"""One replica: requests wait, join at the next round while there are slots, and leave after their last step.

As lopa.runtime.engine does it, with the seconds of a round taken from costs. Knows no router and no clients.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal

import simpy

from lopa.bench.fleet.costs import Round, RoundCosts
from lopa.bench.fleet.decodes import RecordedDecode
from lopa.bench.fleet.scenario import Scenario
from lopa.runtime.requests.admission import Admission

Outcome = Literal["on its way", "answered", "refused", "lost"]


@dataclass(eq=False)
class Asked:
    """A request of a client. Times are in simulated seconds."""

    prompt: int
    """Number of the prompt; equal ones are the same text."""
    recorded: int
    """Which recorded prompt stands for it."""
    arrived: float
    replica: int | None = None
    """To which it was sent last; None while none was up."""
    outcome: Outcome = "on its way"
    started: float | None = None
    """Joined a round, the last time."""
    ended: float | None = None
    decode: RecordedDecode | None = None
    """Chosen when it started."""
    refusals: int = 0
    restarts: int = 0
    step: int = 0
    known: bool = False
    """Whether its prompt's rows were found."""


Decode = Callable[[Asked], RecordedDecode]
"""Return how a request is decoded."""


@dataclass
class Work:
    """What a replica has done."""

    rounds: int = 0
    forward_seconds: float = 0.0
    host_seconds: float = 0.0
    rows: int = 0
    """Of all forwards, padding included."""
    steps: int = 0
    """Of all requests."""
    down_seconds: float = 0.0

    @property
    def busy_seconds(self) -> float:
        """In rounds."""
        return self.forward_seconds + self.host_seconds


@dataclass
class PromptRows:
    """Prompts whose rows are kept, the least recently used first to go."""

    max: int
    _rows: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _total: int = 0

    def __contains__(self, prompt: int) -> bool:
        return prompt in self._rows

    def use(self, prompt: int) -> bool:
        """Whether it is there; it is the newest now."""
        if prompt in self._rows:
            self._rows.move_to_end(prompt)
        return prompt in self._rows

    def add(self, prompt: int, rows: int) -> None:
        """Keep it, if it fits at all."""
        if 0 < rows <= self.max and prompt not in self._rows:
            self._rows[prompt] = rows
            self._total += rows
        while self._total > self.max:
            self._total -= self._rows.popitem(last=False)[1]

    def clear(self) -> None:
        """Forget all."""
        self._rows.clear()
        self._total = 0


class Replica:
    """`decode` says how a request is decoded that starts now."""

    def __init__(
        self, number: int, env: simpy.Environment, scenario: Scenario, costs: RoundCosts, decode: Decode
    ) -> None:
        self.number = number
        self.work = Work()
        self.up = True
        self._env, self._costs, self._decode = env, costs, decode
        self._slots, self._places = scenario.slots, scenario.slots + scenario.queue
        self._max_num_batched_tokens = scenario.max_num_batched_tokens
        self._waiting: deque[Asked] = deque()
        self._running: list[Asked] = []
        self._prompts = PromptRows(scenario.stored_rows)
        self._failed = 0.0
        self._start()

    @property
    def requests(self) -> int:
        """That run and wait."""
        return len(self._running) + len(self._waiting)

    @property
    def has_place(self) -> bool:
        """Whether it takes one more."""
        return self.up and self.requests < self._places

    def take(self, asked: Asked) -> None:
        """Let a request wait; there has to be a place."""
        self._waiting.append(asked)
        if not self._woken.triggered:
            self._woken.succeed()

    def fail(self) -> list[Asked]:
        """Stop at once; what it held, in order."""
        held = [*self._running, *self._waiting]
        self.up, self._failed = False, self._env.now
        self._running, self._waiting = [], deque()
        self._prompts.clear()
        self._rounds.interrupt()
        return held

    def repair(self) -> None:
        """Go on, empty."""
        self.up = True
        self.work.down_seconds += self._env.now - self._failed
        self._start()

    def _start(self) -> None:
        self._admission = Admission(self._max_num_batched_tokens)
        self._woken = self._env.event()
        self._rounds = self._env.process(self._run())

    def _run(self) -> Generator[simpy.Event, None, None]:
        try:
            while True:
                if not self.requests:
                    self._woken = self._env.event()
                    yield self._woken
                self._admit()
                opened = self._round()
                yield self._env.timeout(opened.seconds)
                self._finish(opened)
        except simpy.Interrupt:
            return

    def _admit(self) -> None:
        free = self._slots - len(self._running)
        rows = [self._rows_to_compute(asked) for asked in list(self._waiting)[:free]]
        for _ in range(self._admission.number_joining(rows, nothing_runs=not self._running)):
            asked = self._waiting.popleft()
            asked.decode = self._decode(asked)
            asked.started, asked.step = self._env.now, 0
            asked.known = self._prompts.use(asked.prompt)
            self._running.append(asked)

    def _rows_to_compute(self, asked: Asked) -> int:
        return 0 if asked.prompt in self._prompts else self._decode(asked).prompt

    def _round(self) -> Round:
        shapes, branches = [], []
        for asked in self._running:
            assert asked.decode is not None
            known = asked.known and not asked.step
            shapes.append(asked.decode.shape_of_known_prompt if known else asked.decode.shapes[asked.step])
            branches.append(asked.decode.steps[asked.step].branches)
        joining = sum(not asked.step for asked in self._running)
        return self._costs.round_of(shapes, branches, joining)

    def _finish(self, ended: Round) -> None:
        self.work.rounds += 1
        self.work.forward_seconds += ended.forward
        self.work.host_seconds += ended.host
        self.work.rows += ended.rows
        self.work.steps += len(self._running)
        left = []
        for asked in self._running:
            assert asked.decode is not None
            if not asked.step:
                self._prompts.add(asked.prompt, asked.decode.prompt_rows)
            asked.step += 1
            if asked.step < len(asked.decode.steps):
                left.append(asked)
            else:
                asked.outcome, asked.ended = "answered", self._env.now
        self._running = left
