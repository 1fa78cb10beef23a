"""Decoding of a file of prompts. Answers are written in order, each as soon as it is complete."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from lopa.bench.progress import Progress
from lopa.cli.batch.line_reader import LineReader, RequestLine
from lopa.cli.batch.prompt_lines import RawLine
from lopa.cli.batch.resume import KeptResults
from lopa.cli.files.step_log import StepCallbacks
from lopa.cli.program.verbosity import quiet
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import REQUEST_ERRORS, LopaError
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.request import Request
from lopa.runtime.requests.result import GenerationResult


class BatchProgress(Progress):
    """Progress of a batch. Code in its `with` block reports every step and every outcome to it."""

    def __init__(self, total: int | None, kept: KeptResults, *, shown: bool) -> None:
        """Show progress over `total` prompts, None if unknown. With `shown` False there is only the summary."""
        super().__init__(quiet=quiet() or not shown, transient=True)
        self._kept, self._start = kept, time.perf_counter()
        self._results = self._errors = self._tokens = self._steps = 0
        self.stage("prompts", total or 0, done=kept.results)

    def step(self) -> None:
        """Print a line in a log if the last one is old. A bar moves with the outcomes only."""
        if not self.on_terminal:
            self._show()

    def add(self, outcome: Sequence[GenerationResult] | LopaError) -> None:
        """Count the outcome of a line."""
        self._results += 1
        if isinstance(outcome, LopaError):
            self._errors += 1
        else:
            self._tokens += sum(result.tokens for result in outcome)
            self._steps += sum(result.steps for result in outcome)
        self._show()

    @property
    def errors(self) -> int:
        """Number of prompts answered with an error, including prompts of an earlier run."""
        return self._kept.errors + self._errors

    def summary(self) -> str:
        """Return counts, rates and time of this run in one line."""
        before = f" ({self._kept.results} kept)" if self._kept.results else ""
        return (
            f"{_counted(self._results, 'prompt')}{before}, {_counted(self.errors, 'error')}, {self._tokens} tokens, "
            f"{self._tokens / self._steps if self._steps else 0.0:.2f} tokens per forward, "
            f"{self._rate()}, {time.perf_counter() - self._start:.1f} s"
        )

    def _show(self) -> None:
        self.advance(self._kept.results + self._results, note=self._rate())

    def _rate(self) -> str:
        seconds = time.perf_counter() - self._start
        return f"{self._tokens / seconds if seconds else 0.0:.0f} tokens per second"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def decode_lines(
    lines: Iterator[RawLine],
    reader: LineReader,
    write: Callable[[str], None],
    *,
    callbacks: StepCallbacks,
    max_num_seqs: int,
    progress: BatchProgress,
    source: str,
) -> None:
    """Answer `lines` of the file `source`. The answer to a line that fails is its error, which is also printed.

    If a device fails, the results so far are written and its error is raised.
    """
    waiting: deque[RequestLine] = deque()
    numbers: dict[int, int] = {}
    """Line numbers of the running requests, by the position of the request."""

    def requests() -> Iterator[Request | LopaError]:
        positions = count()
        for line in lines:
            read = reader.request_line(line)
            waiting.append(read)
            for request in read.requests:
                numbers[next(positions)] = line.number
                yield request

    def on_step(position: int, step: Step) -> None:
        callbacks(numbers[position])(step)
        progress.step()

    ended: list[RequestHandle] = []
    for position, handle in enumerate(reader.decoder.handles(requests(), max_num_seqs=max_num_seqs, on_step=on_step)):
        del numbers[position]
        ended.append(handle)
        if len(ended) < len(waiting[0].requests):
            continue
        read = waiting.popleft()
        try:
            results: list[GenerationResult] = [each.result(0) for each in ended]
            answer = read.format.from_handles(ended)
            progress.add(results)
        except REQUEST_ERRORS as error:
            answer = read.format.from_error(error)
            progress.line(f"error: {source} line {read.line.number}: {error}")
            progress.add(error)
        ended = []
        write(json.dumps(answer, ensure_ascii=False))
