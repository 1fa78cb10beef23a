"""Progress of a batch on standard error: a bar on a terminal, otherwise lines. Both end with a summary."""

import time
from collections.abc import Sequence
from datetime import timedelta

import click
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn

from lopa.cli.batch.resume import KeptResults
from lopa.cli.program.verbosity import quiet
from lopa.cli.terminal.progress_bars import ProgressBars
from lopa.runtime.errors import LopaError
from lopa.runtime.requests.result import GenerationResult

_LINE_SECONDS = 10.0


class BatchProgress(ProgressBars):
    """Progress of a batch. Code in its `with` block reports every step and every outcome to it."""

    def __init__(self, total: int | None, kept: KeptResults, *, shown: bool) -> None:
        """Show progress over `total` prompts, None if unknown. With `shown` False there is only the summary."""
        super().__init__(
            TextColumn("prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self._total, self._kept = total, kept
        self._shown = shown and not quiet()
        self._began = self._printed = time.perf_counter()
        self._results = self._errors = self._tokens = self._steps = 0
        self._task: TaskID | None = None
        if self._shown and self._bars is not None:
            self._task = self._bars.add_task("prompts", total=total, completed=kept.results, rate="")

    def step(self) -> None:
        """Print a line if the last line is several seconds old."""
        now = time.perf_counter()
        if self._shown and self._task is None and now - self._printed >= _LINE_SECONDS:
            self._printed = now
            click.echo(self._line(now - self._began), err=True)

    def add(self, outcome: Sequence[GenerationResult] | LopaError) -> None:
        """Count the outcome of a line."""
        self._results += 1
        if isinstance(outcome, LopaError):
            self._errors += 1
        else:
            self._tokens += sum(result.tokens for result in outcome)
            self._steps += sum(result.steps for result in outcome)
        if self._task is not None and self._bars is not None:
            rate = _rate(self._tokens, time.perf_counter() - self._began)
            self._bars.update(self._task, completed=self._kept.results + self._results, rate=rate)
        self.step()

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        if self._task is not None:
            self._console.print(escape(text), soft_wrap=True)
        else:
            click.echo(text, err=True)

    @property
    def errors(self) -> int:
        """Number of prompts answered with an error, including prompts of an earlier run."""
        return self._kept.errors + self._errors

    def summary(self) -> str:
        """Return counts, rates and time of this run in one line."""
        seconds = time.perf_counter() - self._began
        before = f" ({self._kept.results} kept)" if self._kept.results else ""
        return (
            f"{_counted(self._results, 'prompt')}{before}, {_counted(self.errors, 'error')}, {self._tokens} tokens, "
            f"{self._tokens / self._steps if self._steps else 0.0:.2f} tokens per forward, "
            f"{_rate(self._tokens, seconds)}, {seconds:.1f} s"
        )

    def _line(self, seconds: float) -> str:
        done = self._kept.results + self._results
        if self._total is None:
            return f"{_counted(done, 'prompt')}, {_rate(self._tokens, seconds)}"
        left = (self._total - done) * seconds / self._results if self._results else None
        remaining = "" if left is None else f", {timedelta(seconds=round(left))} left"
        return f"{done} of {_counted(self._total, 'prompt')}, {_rate(self._tokens, seconds)}{remaining}"


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds if seconds else 0.0:.0f} tokens per second"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
