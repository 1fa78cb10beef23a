"""Measurements of sides, checked against the reference before they are timed.

A piece has all sides open at once, with one shape, and times them in alternation. An opening has one side with every
shape, for models of which two sides do not fit into memory. Openings of the sides alternate instead.
"""

import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from lopa.bench.forward.machine_rates import measure_rates
from lopa.bench.forward.torch_rates import measure_torch_rates
from lopa.bench.forward.work import ForwardShape
from lopa.bench.machine import date_now, machine_now
from lopa.bench.progress import BenchProgress, silent
from lopa.bench.speed.speed_measurement import torch_threads
from lopa.bench.turns import run_in_turns
from lopa.runtime.errors import BadInputError, MissingBackendError
from tools.peers.agreement import Agreement, SideAnswer, agreement_of, check_agreement
from tools.peers.materials import Materials, versions_of_peers
from tools.peers.measured import FIRST_TOKENS, Opening, OpeningCosts, Peaks, Piece, Setting, SideRounds, Step
from tools.peers.reference import Case, reference_answers
from tools.peers.side_process import SideProcess
from tools.peers.side_work import SideWork, work_of_side
from tools.peers.sides import OURS, Side, baseline_of_network, command_of_side, files_of_side
from tools.peers.tokens import write_tokens

_BUFFER = 16 << 20
"""Bytes read at a time."""
_CPU_INFO = Path("/proc/cpuinfo")
_INSTRUCTIONS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_PAUSE = 0.1
"""Seconds between two sides, since waiting threads spin for a while."""


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
    baseline = baseline_of_network(materials.dimensions)
    chosen = [baseline, *(side for side in sides if side is not baseline and side.computes_shape(shape))]
    answers = prepare_answers(materials, chosen, [shape], threads)
    left_out: dict[str, str] = {}
    opened: dict[Side, SideProcess] = {}
    costs: dict[Side, OpeningCosts] = {}
    found: dict[Side, Agreement] = {}
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(dir=materials.folder) as temporary:
        folder = Path(temporary)
        tokens = write_tokens(folder, materials.dimensions.vocab_size, shape)
        for side in chosen:
            try:
                process = _process(side, materials, threads, folder)
            except MissingBackendError as error:
                if side is baseline or (side.peer == OURS and side.weights is None):
                    raise
                left_out[side.name] = error.received
                continue
            stack.callback(process.close)
            costs[side] = _open(process, tokens, [shape])
            found[side] = _checked_agreement(process, side, tokens, shape, answers)
            opened[side] = process
        peaks = measure_peaks(threads)
        seconds = run_in_turns({side: partial(_run, process) for side, process in opened.items()}, rounds, progress)
        costs = {side: replace(costs[side], memory=process.memory()) for side, process in opened.items()}
    results = (
        SideRounds(
            side.name,
            Step(shape, tuple(seconds[side]), found[side], _work(side, materials, shape, answers)),
            costs[side],
        )
        for side in opened
    )
    return Piece(setting_now(materials, threads, command, peaks), tuple(results), left_out)


def measure_opening(
    materials: Materials,
    side: Side,
    shapes: Sequence[ForwardShape],
    turn: int,
    forwards: int,
    setting: Setting,
) -> Opening:
    """Open `side`, check it against the reference with every shape, time `forwards` forwards of each, and close it.

    Its files are read before, so that every side finds them in memory. The shapes have one prefix. Raises
    MissingBackendError for an unavailable side, and CheckFailedError if it disagrees.
    """
    shapes = [shape for shape in shapes if side.computes_shape(shape)]
    answers = prepare_answers(materials, [side], shapes, setting.threads)
    steps = []
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(dir=materials.folder) as temporary:
        folder = Path(temporary)
        tokens = {shape: write_tokens(folder, materials.dimensions.vocab_size, shape) for shape in shapes}
        command_of_side(side, materials, setting.threads)  # fail before reading files
        for path in files_of_side(side, materials):
            _read_into_cache(path)
        process = _process(side, materials, setting.threads, folder)
        stack.callback(process.close)
        costs = _open(process, tokens[shapes[0]], shapes)
        for shape in shapes:
            agreement = _checked_agreement(process, side, tokens[shape], shape, answers)
            seconds = tuple(process.run() for _ in range(forwards))
            steps.append(Step(shape, seconds, agreement, _work(side, materials, shape, answers)))
        return Opening(setting, side.name, turn, replace(costs, memory=process.memory()), tuple(steps))


def _work(side: Side, materials: Materials, shape: ForwardShape, answers: Mapping[Case, SideAnswer]) -> SideWork:
    return work_of_side(side, materials.dimensions, shape, answers[shape, side.attention].touched)


def prepare_answers(
    materials: Materials, sides: Sequence[Side], shapes: Sequence[ForwardShape], threads: int
) -> dict[Case, SideAnswer]:
    """Return the reference's answers for all sides and shapes, from one pass over the checkpoint if any is missing."""
    cases = {(shape, side.attention): None for shape in shapes for side in sides if side.computes_shape(shape)}
    return reference_answers(materials.checkpoint, list(cases), threads, materials.answers)


def setting_now(materials: Materials, threads: int, command: str, peaks: Peaks) -> Setting:
    """Return the setting of a measurement that ends now."""
    return Setting(
        date=date_now(),
        command=command,
        machine=machine_now(),
        instructions=_instructions(),
        peers=versions_of_peers(materials),
        threads=threads,
        peaks=peaks,
    )


def _process(side: Side, materials: Materials, threads: int, folder: Path) -> SideProcess:
    """Start a side. Raises MissingBackendError for an unavailable one, such as a form of int4 that does not exist."""
    command = command_of_side(side, materials, threads)
    try:
        return SideProcess(side.name, command, folder, side.environment)
    except BadInputError as error:
        if side.weights is None:
            raise
        raise MissingBackendError(error.received, expected=error.expected, remedy=error.remedy) from error


def _open(process: SideProcess, tokens: Path, shapes: Sequence[ForwardShape]) -> OpeningCosts:
    """Finish opening and compute the prefix of `shapes`, which have the same."""
    (prefix,) = {shape.prefix for shape in shapes}
    open_seconds = process.reserve(
        prefix, max(shape.branches for shape in shapes), max(shape.window for shape in shapes)
    )
    first = process.first(min(FIRST_TOKENS, prefix), tokens)
    return OpeningCosts(open_seconds, first, process.prefix(prefix, tokens), prefix, None)


def _checked_agreement(
    process: SideProcess, side: Side, tokens: Path, shape: ForwardShape, answers: Mapping[Case, SideAnswer]
) -> Agreement:
    """Run one forward, which also warms up, and return its agreement. Raises CheckFailedError if it is too low."""
    process.windows(tokens, shape)
    process.run()
    agreement = agreement_of(process.answer(shape), answers[shape, side.attention])
    reference = answers[shape, side.attention]
    rows, routed = shape.branches * shape.window, reference.touched is not None
    check_agreement(side.name, side.precision, agreement, rows, routed=routed)
    return agreement


def _run(process: SideProcess, _turn: int) -> float:
    time.sleep(_PAUSE)
    return process.run()


def _read_into_cache(path: Path) -> None:
    """Read a file, so that its pages are in memory if there is space."""
    buffer = bytearray(_BUFFER)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _instructions() -> tuple[str, ...]:
    """Return the instruction sets that Linux reports, or none elsewhere."""
    flags = _CPU_INFO.read_text().split() if _CPU_INFO.is_file() else []
    return tuple(name for name in _INSTRUCTIONS if name in flags)


def measure_peaks(threads: int) -> Peaks:
    """Measure this machine for some seconds."""
    rates = measure_rates(threads)
    with torch_threads(threads):
        bfloat16 = measure_torch_rates("cpu", torch.bfloat16).float32
    return Peaks(rates.float32, bfloat16, rates.int8, rates.bandwidth)
