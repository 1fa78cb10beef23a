"""Results of tools/gpu/report.py, and the file that stores them.

Every record is written immediately. An interrupted run keeps its records, and a later run with the same folder resumes.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from lopa.bench.forward.work import ForwardShape, MachineRates
from lopa.bench.gpu.device import GpuMachine
from lopa.bench.gpu.host_share import StepTimes
from lopa.bench.gpu.kernel_times import KernelTimes
from lopa.bench.gpu.token_agreement import TokenAgreement
from lopa.bench.report import date_now, json_from_report
from lopa.export.weights.plan import Dtype
from lopa.runtime.files.output_file import write_atomically
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json

Stage: TypeAlias = Literal["programs", "checkpoint", "export", "check", "decode", "kernels", "forward"]
STAGES: tuple[Stage, ...] = ("programs", "checkpoint", "export", "check", "decode", "kernels", "forward")
"""Stages in order. The longest comes last, so an interruption loses the least."""
RESULTS_NAME = "gpu.json"


@dataclass(frozen=True)
class StageRun:
    """Last run of one stage."""

    stage: Stage
    dtype: Dtype | None
    """Data type, or None for stages that all data types share."""
    date: str
    seconds: float
    note: str
    """"made", "reused", or the reason why the stage did not finish."""
    finished: bool


@dataclass(frozen=True)
class ProgramResult:
    """Result of a program that ran in its own process."""

    name: str
    code: int
    """Exit code: 124 after the time limit."""
    seconds: float
    last: str
    """Last line of output."""
    passed: bool


@dataclass(frozen=True)
class SideRecord:
    """A result of one engine, or of torch."""

    dtype: Dtype
    side: str


@dataclass(frozen=True)
class OpenedSide(SideRecord):
    """Time and memory of opening an engine on the device."""

    seconds: float
    """Seconds of opening the engine and of one forward of the largest shape."""
    memory: int
    """Bytes of device memory in use, including the peak of that forward."""


@dataclass(frozen=True)
class CheckResult(SideRecord):
    """Agreement of tokens with float32."""

    agreement: TokenAgreement


@dataclass(frozen=True)
class DecodeResult(SideRecord):
    """Times of decoding steps."""

    steps: StepTimes


@dataclass(frozen=True)
class RatesResult:
    """Rates of the device in one data type."""

    dtype: Dtype
    rates: MachineRates


@dataclass(frozen=True)
class KernelsResult(SideRecord):
    """Kernels of a forward of one shape."""

    shape: ForwardShape
    kernels: KernelTimes


@dataclass(frozen=True)
class ForwardResult(SideRecord):
    """Time of a forward of one shape."""

    shape: ForwardShape
    median: float
    """Median seconds of Session.forward."""
    min: float
    floor: float
    """Minimum seconds at the device's measured rates."""
    times_floor: float
    """Median divided by the floor."""


@dataclass(frozen=True)
class Failure(SideRecord):
    """Failed measurement."""

    stage: Literal["open"] | Stage
    what: str
    """Shape of the failed forward, or empty."""
    reason: str


@dataclass(frozen=True)
class GpuResults:
    """All results so far."""

    benchmark: str
    likeness: str
    machine: GpuMachine
    commands: tuple[str, ...]
    """Command of every run that contributed results."""
    rounds: int
    shapes: tuple[ForwardShape, ...]
    """Shapes of the forward stage."""
    stages: tuple[StageRun, ...] = ()
    programs: tuple[ProgramResult, ...] = ()
    opened: tuple[OpenedSide, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    decodes: tuple[DecodeResult, ...] = ()
    kernels: tuple[KernelsResult, ...] = ()
    rates: tuple[RatesResult, ...] = ()
    forwards: tuple[ForwardResult, ...] = ()
    failures: tuple[Failure, ...] = ()


Record: TypeAlias = (
    ProgramResult | OpenedSide | CheckResult | DecodeResult | KernelsResult | RatesResult | ForwardResult | Failure
)
_FIELDS: dict[type[Record], str] = {
    ProgramResult: "programs",
    OpenedSide: "opened",
    CheckResult: "checks",
    DecodeResult: "decodes",
    KernelsResult: "kernels",
    RatesResult: "rates",
    ForwardResult: "forwards",
    Failure: "failures",
}
_FIELDS_OF_STAGE = {
    "open": ("opened",),
    "check": ("checks",),
    "decode": ("decodes",),
    "kernels": ("kernels",),
    "forward": ("rates", "forwards"),
}


def results_from_file(path: Path) -> GpuResults | None:
    """Return the results of an earlier run, or None. Raises BadInputError for a file of another program."""
    if not path.exists():
        return None
    expected = "a report of this version, or no file"
    remedy = f"remove {path} and keep the checkpoint and bundles next to it"
    text = bytes_from_file(path, expected=expected, remedy=remedy)
    source = f"{path} is not a GPU report of this version"
    return value_from_json(text, GpuResults, source=source, expected=expected, remedy=remedy)


def with_record(results: GpuResults, record: Record) -> GpuResults:
    """Return `results` with one more record."""
    name = _FIELDS[type(record)]
    changed: dict[str, Any] = {name: (*getattr(results, name), record)}
    return replace(results, **changed)


def without_stage(results: GpuResults, stage: Literal["open"] | Stage, dtype: Dtype) -> GpuResults:
    """Return `results` without the records of a stage in this data type, so that old and new figures do not mix."""
    fields: dict[str, Any] = {
        name: tuple(each for each in getattr(results, name) if each.dtype != dtype)
        for name in _FIELDS_OF_STAGE.get(stage, ())
    }
    failures = tuple(each for each in results.failures if (each.stage, each.dtype) != (stage, dtype))
    return replace(results, **fields, failures=failures)


def with_stage_run(
    results: GpuResults, stage: Stage, dtype: Dtype | None, seconds: float, note: str, *, finished: bool = True
) -> GpuResults:
    """Return `results` with this run as the stage's last."""
    others = tuple(each for each in results.stages if (each.stage, each.dtype) != (stage, dtype))
    return replace(results, stages=(*others, StageRun(stage, dtype, date_now(), seconds, note, finished)))


def write_results(folder: Path, results: GpuResults) -> None:
    """Write RESULTS_NAME to `folder` atomically."""
    write_atomically(folder / RESULTS_NAME, json_from_report(results))
