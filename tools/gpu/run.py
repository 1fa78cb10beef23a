"""State of one run of tools/gpu/report.py: settings, results so far, and remaining time."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self, TypeVar

from lopa.bench.forward.work import ForwardShape
from lopa.bench.gpu.device import gpu_machine_now
from lopa.bench.gpu.markdown import AIMS_BUSY, markdown_from_results
from lopa.bench.gpu.results import (
    RESULTS_NAME,
    STAGES,
    Failure,
    GpuResults,
    Record,
    Stage,
    results_from_file,
    with_record,
    with_stage_run,
    without_stage,
    write_results,
)
from lopa.export.weights.plan import Dtype
from lopa.runtime.errors import LopaError
from lopa.runtime.files.output_file import write_atomically
from tools.checkpoint.likeness import Likeness

SHAPES = tuple(
    ForwardShape(branches, window, prefix, wanted=window)
    for prefix in (512, 128, 2048)
    for branches, window in ((4, 64), (1, 32), (1, 64), (4, 32), (8, 32), (8, 64))
)
"""Shapes of the forward stage in order. The shapes named in the goals come first."""
TEXT_NAME = "gpu.md"
_REASON_LENGTH = 300
Part = TypeVar("Part")


@dataclass(frozen=True)
class Settings:
    """Settings of a run: measurements and folders."""

    name: str
    """Name of the likeness, for the report and the folders."""
    likeness: Likeness
    out: Path
    """Folder of the report."""
    work: Path
    """Folder of the checkpoint, the bundles and the results, for later runs."""
    command: str
    """Command that started this run."""
    device: str
    dtypes: tuple[Dtype, ...]
    stages: tuple[Stage, ...] = STAGES
    limit_seconds: float = 540.0
    """Seconds after which nothing new is started."""
    rounds: int = 20
    shapes: tuple[ForwardShape, ...] = SHAPES
    profiled: tuple[ForwardShape, ...] = tuple(ForwardShape(*shape, wanted=shape[1]) for shape in AIMS_BUSY)
    """Shapes of the stage kernels."""

    @property
    def checkpoint(self) -> Path:
        """Folder of the checkpoint."""
        return self.work / f"checkpoint-{self.name}"

    def bundle(self, dtype: Dtype) -> Path:
        """Return the folder of the bundle."""
        return self.work / f"bundle-{self.name}-{dtype}"


@dataclass
class GpuRun:
    """State that the stages share. Every result is written immediately."""

    settings: Settings
    log: Callable[[str], None]
    """Callback that receives a line for each finished part."""
    results: GpuResults
    _began: float = field(default_factory=time.perf_counter)

    @classmethod
    def start(cls, settings: Settings, log: Callable[[str], None]) -> Self:
        """Start a run, with the work folder's earlier results if model, device and shapes match.

        Raises BadInputError for a results file that cannot be read, or a folder that cannot be written.
        """
        machine = gpu_machine_now(settings.device)
        results = GpuResults("gpu", settings.name, machine, (), settings.rounds, settings.shapes)
        known = results_from_file(settings.work / RESULTS_NAME)
        if known is not None and _identity(known) == _identity(results):
            results = replace(known, machine=machine)
        commands = tuple(dict.fromkeys((*results.commands, settings.command)))
        run = cls(settings, log, results)
        run.put(replace(results, commands=commands))
        return run

    @property
    def seconds_left(self) -> float:
        """Seconds until nothing new is started."""
        return self.settings.limit_seconds - (time.perf_counter() - self._began)

    def may_start(self, stage: Stage) -> bool:
        """Return True if the stage is requested and there is time left. Report a lack of time."""
        if stage not in self.settings.stages:
            return False
        if self.seconds_left <= 0:
            self.log(f"{stage}: not started, the limit of {self.settings.limit_seconds:g} seconds is reached")
        return self.seconds_left > 0

    def put(self, results: GpuResults) -> None:
        """Store and write `results`."""
        self.results = results
        for folder in (self.settings.work, self.settings.out):
            write_results(folder, results)
        write_atomically(self.settings.out / TEXT_NAME, markdown_from_results(results).encode())

    def add(self, record: Record) -> None:
        """Store and write one more record."""
        self.put(with_record(self.results, record))

    def begin_stage(self, stage: Stage, dtype: Dtype | None = None) -> float:
        """Report the start of a stage without its earlier results. Return the time (time.perf_counter)."""
        if dtype is not None:
            self.put(without_stage(self.results, stage, dtype))
        self.log(f"{' '.join(filter(None, (stage, dtype)))}: begins, {max(self.seconds_left, 0):.0f} s left")
        return time.perf_counter()

    def parts(self, stage: Stage, dtype: Dtype, began: float, parts: Sequence[Part], what: str) -> Iterator[Part]:
        """Yield the parts of a stage until the time limit, then end the stage. `what` is a plural noun for them."""
        done = 0
        for part in parts:
            if self.seconds_left <= 0:
                break
            self.log(f"{stage} {dtype}: {done + 1} of {len(parts)} {what} begins, {self.seconds_left:.0f} s left")
            yield part
            done += 1
        note = f"{done} of {len(parts)} {what}"
        if done < len(parts):
            note += f" within {self.settings.limit_seconds:g} seconds"
        self.end_stage(stage, dtype, began, note, finished=done == len(parts))

    def end_stage(self, stage: Stage, dtype: Dtype | None, began: float, note: str, *, finished: bool = True) -> None:
        """Store, write and report the end of the stage that started at `began` (time.perf_counter)."""
        seconds = time.perf_counter() - began
        self.put(with_stage_run(self.results, stage, dtype, seconds, note, finished=finished))
        self.log(
            f"{' '.join(filter(None, (stage, dtype)))}: {note}; {seconds:.1f} s, {max(self.seconds_left, 0):.0f} s left"
        )

    @contextmanager
    def catch_failure(self, dtype: Dtype, side: str, stage: Stage, what: str = "") -> Iterator[None]:
        """Add an exception of the block as a failed measurement. Engines raise different exceptions."""
        try:
            yield
        except Exception as error:
            self.add_failure(dtype, side, stage, what, error)

    def add_failure(self, dtype: Dtype, side: str, stage: Literal["open"] | Stage, what: str, error: Exception) -> None:
        """Store, write and report a failed measurement."""
        if isinstance(error, LopaError):
            reason = f"{error.received}; expected {error.expected}"
        else:
            reason = f"{type(error).__name__}: {error}"
        failure = Failure(dtype, side, stage, what, " ".join(reason.split())[:_REASON_LENGTH])
        self.add(failure)
        self.log(f"{stage} {' '.join(filter(None, (what, dtype)))}, {side}: {failure.reason}")


def _identity(results: GpuResults) -> tuple[object, ...]:
    """Return the fields that must be equal for two runs to share a report."""
    return results.likeness, results.machine.device, results.machine.name, results.rounds, results.shapes
