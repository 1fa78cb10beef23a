"""One run of tools/gpu/report.py: what it is asked for, what it has found so far, and the time that it has left.

Does not measure.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from lopa.bench.forward.work import ForwardShape
from lopa.bench.gpu.device import gpu_machine_now
from lopa.bench.gpu.markdown import markdown_from_results
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
    write_results,
)
from lopa.export.weights.plan import Dtype
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import LopaError
from lopa.runtime.files.output_file import write_whole
from tools.checkpoint.likeness import Likeness

SHAPES = tuple(
    ForwardShape(branches, window, prefix, wanted=window)
    for prefix in (512, 128, 2048)
    for branches, window in ((4, 64), (1, 32), (1, 64), (4, 32), (8, 32), (8, 64))
)
"""What the forward stage times, in this order: what is judged comes first."""
TEXT_NAME = "gpu.md"
_REASON_LENGTH = 300


@dataclass(frozen=True)
class Settings:
    """What is measured, and where it is kept."""

    name: str
    """Of the likeness, for the report and the folders."""
    likeness: Likeness
    out: Path
    """Where the report goes."""
    work: Path
    """Where the checkpoint, the bundles and the results so far are kept for another run."""
    command: str
    """That started this run."""
    device: str
    dtypes: tuple[Dtype, ...]
    stages: tuple[Stage, ...] = STAGES
    limit_seconds: float = 540.0
    """After this nothing new is started."""
    rounds: int = 20
    shapes: tuple[ForwardShape, ...] = SHAPES

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's folder."""
        return self.work / f"checkpoint-{self.name}"

    def bundle(self, dtype: Dtype) -> Path:
        """The bundle's folder."""
        return self.work / f"bundle-{self.name}-{dtype}"

    @property
    def engines(self) -> tuple[str, ...]:
        """Devices of our own engines: the one named and, on a GPU, TensorRT's on the same one."""
        device = parse_device(self.device)
        return (self.device, f"tensorrt:{device.number}") if device.family.is_nvidia_gpu else (self.device,)


@dataclass
class GpuRun:
    """What the stages share. Results are written as soon as they are put."""

    settings: Settings
    tell: Callable[[str], None]
    """Hears a line for everything that ends."""
    results: GpuResults
    _began: float = field(default_factory=time.perf_counter)

    @classmethod
    def begun(cls, settings: Settings, tell: Callable[[str], None]) -> Self:
        """A run on the results in the work folder, if they are of the same model, device and shapes, or on new ones.

        Raises BadInputError for a file of results that cannot be read, or a folder that cannot be written.
        """
        machine = gpu_machine_now(settings.device)
        results = GpuResults("gpu", settings.name, machine, (), settings.rounds, settings.shapes)
        known = results_from_file(settings.work / RESULTS_NAME)
        if known is not None and _what_must_agree(known) == _what_must_agree(results):
            results = replace(known, machine=machine)
        commands = tuple(dict.fromkeys((*results.commands, settings.command)))
        run = cls(settings, tell, results)
        run.put(replace(results, commands=commands))
        return run

    @property
    def left(self) -> float:
        """Seconds until nothing new is started."""
        return self.settings.limit_seconds - (time.perf_counter() - self._began)

    def may_start(self, stage: Stage) -> bool:
        """Whether the stage is asked for and there is time left; says so when there is not."""
        if stage not in self.settings.stages:
            return False
        if self.left <= 0:
            self.tell(f"{stage}: not started, {self.settings.limit_seconds:g} seconds were spent")
        return self.left > 0

    def put(self, results: GpuResults) -> None:
        """Keep and write `results`."""
        self.results = results
        for folder in (self.settings.work, self.settings.out):
            write_results(folder, results)
        write_whole(self.settings.out / TEXT_NAME, markdown_from_results(results).encode())

    def add(self, record: Record) -> None:
        """Keep and write one record more."""
        self.put(with_record(self.results, record))

    def ended(self, stage: Stage, dtype: Dtype | None, began: float, note: str, *, finished: bool = True) -> None:
        """Keep, write and say how the stage that began at `began` (time.perf_counter) ended."""
        seconds = time.perf_counter() - began
        self.put(with_stage_run(self.results, stage, dtype, seconds, note, finished=finished))
        self.tell(f"{' '.join(filter(None, (stage, dtype)))}: {note}; {seconds:.1f} s, {max(self.left, 0):.0f} s left")

    def failed(self, dtype: Dtype, side: str, stage: Literal["open"] | Stage, what: str, error: Exception) -> None:
        """Keep, write and say what could not be measured."""
        if isinstance(error, LopaError):
            reason = f"{error.received}; expected {error.expected}"
        else:
            reason = f"{type(error).__name__}: {error}"
        failure = Failure(dtype, side, stage, what, " ".join(reason.split())[:_REASON_LENGTH])
        self.add(failure)
        self.tell(f"{stage} {' '.join(filter(None, (what, dtype)))}, {side}: {failure.reason}")


def _what_must_agree(results: GpuResults) -> tuple[object, ...]:
    """Between two runs that share a report."""
    return results.likeness, results.machine.device, results.machine.name, results.rounds, results.shapes
