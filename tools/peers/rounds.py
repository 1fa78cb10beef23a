"""One piece of a comparison: all sides with one shape and number of threads, checked, then timed in alternation."""

import contextlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from lopa.bench.forward.machine_rates import measure_rates
from lopa.bench.forward.torch_rates import measure_torch_rates
from lopa.bench.forward.work import ForwardShape
from lopa.bench.machine import Machine, date_now, machine_now
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.speed.speed_measurement import torch_threads
from lopa.bench.turns import run_in_turns
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import MissingBackendError
from tools.peers.agreement import Agreement, agreement_of, check_agreement
from tools.peers.materials import Materials, versions_of_peers
from tools.peers.side_process import SideProcess
from tools.peers.sides import BASELINE, OURS, REFERENCE, Side, command_of_side

_ALWAYS = (REFERENCE, BASELINE)
"""Sides that every piece opens."""
_CPU_INFO = Path("/proc/cpuinfo")
_INSTRUCTIONS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_PAUSE = 0.1
"""Seconds between two sides, since waiting threads spin for a while."""


@dataclass(frozen=True)
class Peaks:
    """Operations per second of one large product. A multiply-add counts as two."""

    float32: float
    """Rate in ONNX Runtime, as for int8."""
    bfloat16: float
    """Rate in torch."""
    int8: float
    bandwidth: float
    """Bytes per second of a large copy."""


@dataclass(frozen=True)
class SideRounds:
    """Results of one side in a piece."""

    name: str
    seconds: tuple[float, ...]
    """Seconds of every round."""
    agreement: Agreement
    """Agreement with the reference on these windows."""


@dataclass(frozen=True)
class Piece:
    """Results of one run. Only its own rounds are comparable."""

    date: str
    command: str
    machine: Machine
    instructions: tuple[str, ...]
    """Instruction sets of the CPU that matter for products."""
    peers: dict[str, str]
    """Versions that are not among the machine's packages."""
    threads: int
    shape: ForwardShape
    peaks: Peaks
    sides: tuple[SideRounds, ...]
    """Results of the sides, including the baseline."""
    left_out: dict[str, str]
    """Skipped sides with the reason."""


def measure_piece(
    materials: Materials,
    sides: Sequence[Side],
    shape: ForwardShape,
    threads: int,
    rounds: int,
    command: str,
    progress: BenchProgress = silent,
) -> Piece:
    """Open `sides` and the baseline, check each against the reference, then time them in alternation.

    Raises CheckFailedError before any timing if a side disagrees.
    """
    chosen = [*_ALWAYS, *(side for side in sides if side not in _ALWAYS)]
    left_out: dict[str, str] = {}
    opened: dict[Side, SideProcess] = {}
    found: dict[Side, Agreement] = {}
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(dir=materials.folder) as temporary:
        folder = Path(temporary)
        tokens = _tokens(materials, shape, folder)
        reference = None
        for side in chosen:
            try:
                process = SideProcess(side.name, command_of_side(side, materials, threads), folder)
            except MissingBackendError as error:
                if side.peer == OURS:
                    raise
                left_out[side.name] = error.received
                continue
            stack.callback(process.close)
            process.prepare(tokens, shape)
            process.run()
            answer = process.answer(shape)
            reference = reference or answer
            found[side] = agreement_of(answer, reference)
            check_agreement(side.name, side.precision, found[side])
            if side in sides or side is BASELINE:
                opened[side] = process
            else:
                process.close()
        peaks = _peaks(threads)
        seconds = run_in_turns({side: partial(_run, process) for side, process in opened.items()}, rounds, progress)
    return Piece(
        date=date_now(),
        command=command,
        machine=machine_now(),
        instructions=_instructions(),
        peers=versions_of_peers(materials),
        threads=threads,
        shape=shape,
        peaks=peaks,
        sides=tuple(SideRounds(side.name, tuple(seconds[side]), found[side]) for side in opened),
        left_out=left_out,
    )


def _run(process: SideProcess, _turn: int) -> float:
    time.sleep(_PAUSE)
    return process.run()


def _tokens(materials: Materials, shape: ForwardShape, folder: Path) -> Path:
    """Write a file of random tokens that is the same for every run of a shape."""
    vocabulary = Bundle.open(materials.bundle("fp32")).manifest.dimensions.vocab_size
    rng = np.random.default_rng([shape.prefix, shape.branches, shape.window])
    path = folder / "tokens"
    rng.integers(vocabulary, size=shape.prefix + shape.branches * shape.window, dtype=np.int32).tofile(path)
    return path


def _instructions() -> tuple[str, ...]:
    """Return the instruction sets that Linux reports, or none elsewhere."""
    flags = _CPU_INFO.read_text().split() if _CPU_INFO.is_file() else []
    return tuple(name for name in _INSTRUCTIONS if name in flags)


def _peaks(threads: int) -> Peaks:
    rates = measure_rates(threads)
    with torch_threads(threads):
        bfloat16 = measure_torch_rates("cpu", torch.bfloat16).float32
    return Peaks(rates.float32, bfloat16, rates.int8, rates.bandwidth)
