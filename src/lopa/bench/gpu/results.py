"""What tools/gpu/report.py has measured so far, as a record and as the files that keep it. Does not measure.

Everything is written at once, so that a run that is cut off leaves what it had; a later run with the same folder goes
on from there.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from lopa.bench.forward.machine_rates import MachineRates
from lopa.bench.forward.work import ForwardShape
from lopa.bench.gpu.device import GpuMachine
from lopa.bench.gpu.host_share import StepTimes
from lopa.bench.gpu.token_agreement import TokenAgreement
from lopa.bench.machine import date_now
from lopa.bench.report import json_from_report
from lopa.export.weights.plan import Dtype
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_whole

Stage: TypeAlias = Literal["checkpoint", "export", "engine", "check", "decode", "forward"]
STAGES: tuple[Stage, ...] = ("checkpoint", "export", "engine", "check", "decode", "forward")
"""In order; the longest comes last, so that a cut-off loses least."""
RESULTS_NAME = "gpu.json"


@dataclass(frozen=True)
class StageRun:
    """The last run of one stage."""

    stage: Stage
    dtype: Dtype | None
    """None for the checkpoint, which all share."""
    date: str
    seconds: float
    note: str
    """made, reused, or how far it came."""
    finished: bool


@dataclass(frozen=True)
class _OfSide:
    """A result of one engine, or of torch."""

    dtype: Dtype
    side: str


@dataclass(frozen=True)
class OpenedSide(_OfSide):
    """An engine on the device, ready to run."""

    seconds: float
    """Seconds of opening it, and of one forward of the largest shape."""
    memory: int
    """Bytes of the device that this took, peak of that forward included."""


@dataclass(frozen=True)
class CheckResult(_OfSide):
    """Tokens beside float32."""

    agreement: TokenAgreement


@dataclass(frozen=True)
class DecodeResult(_OfSide):
    """Steps of decodes."""

    steps: StepTimes


@dataclass(frozen=True)
class RatesResult:
    """The device's limits in one dtype."""

    dtype: Dtype
    rates: MachineRates


@dataclass(frozen=True)
class ForwardResult(_OfSide):
    """One shape."""

    shape: ForwardShape
    median: float
    """Seconds of Session.forward."""
    min: float
    floor: float
    """Seconds, at the device's measured rates."""
    times_floor: float
    """The median as a multiple of the floor."""


@dataclass(frozen=True)
class Failure(_OfSide):
    """A measurement that failed."""

    stage: Literal["open"] | Stage
    what: str
    """Empty, or the shape."""
    reason: str


@dataclass(frozen=True)
class GpuResults:
    """Everything so far."""

    benchmark: str
    likeness: str
    machine: GpuMachine
    commands: tuple[str, ...]
    """One for every run on these results."""
    rounds: int
    shapes: tuple[ForwardShape, ...]
    """That the forward stage was asked for."""
    stages: tuple[StageRun, ...] = ()
    opened: tuple[OpenedSide, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    decodes: tuple[DecodeResult, ...] = ()
    rates: tuple[RatesResult, ...] = ()
    forwards: tuple[ForwardResult, ...] = ()
    failures: tuple[Failure, ...] = ()


Record: TypeAlias = OpenedSide | CheckResult | DecodeResult | RatesResult | ForwardResult | Failure
_FIELDS: dict[type[Record], str] = {
    OpenedSide: "opened",
    CheckResult: "checks",
    DecodeResult: "decodes",
    RatesResult: "rates",
    ForwardResult: "forwards",
    Failure: "failures",
}
_FIELDS_OF_STAGE = {"open": ("opened",), "check": ("checks",), "decode": ("decodes",), "forward": ("rates", "forwards")}


def results_from_file(path: Path) -> GpuResults | None:
    """What an earlier run left; None where there is nothing. Raises BadInputError for another program's file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=GpuResults)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise BadInputError(
            f"{path} is not a GPU report of this version: {error}",
            expected="what an earlier run of this program left, or nothing",
            remedy=f"remove {path}; the checkpoint and the bundles beside it can stay",
        ) from error


def with_record(results: GpuResults, record: Record) -> GpuResults:
    """`results` and one record more."""
    name = _FIELDS[type(record)]
    changed: dict[str, Any] = {name: (*getattr(results, name), record)}
    return replace(results, **changed)


def without_stage(results: GpuResults, stage: Literal["open"] | Stage, dtype: Dtype) -> GpuResults:
    """`results` as they were before the stage first ran in this dtype: no old figure stands beside new ones."""
    fields: dict[str, Any] = {
        name: tuple(each for each in getattr(results, name) if each.dtype != dtype) for name in _FIELDS_OF_STAGE[stage]
    }
    failures = tuple(each for each in results.failures if (each.stage, each.dtype) != (stage, dtype))
    return replace(results, **fields, failures=failures)


def with_stage_run(
    results: GpuResults, stage: Stage, dtype: Dtype | None, seconds: float, note: str, *, finished: bool = True
) -> GpuResults:
    """`results` where the stage's last run is this one."""
    others = tuple(each for each in results.stages if (each.stage, each.dtype) != (stage, dtype))
    return replace(results, stages=(*others, StageRun(stage, dtype, date_now(), seconds, note, finished)))


def write_results(folder: Path, results: GpuResults) -> None:
    """Write RESULTS_NAME into `folder`, whole or not at all."""
    write_whole(folder / RESULTS_NAME, json_from_report(results))
