"""Stored measurements of a comparison, and their tables."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from operator import truediv
from pathlib import Path

import msgspec

from lopa.bench.forward.work import ForwardShape
from lopa.bench.report import files_of_report, write_report
from lopa.bench.table import MISSING, Table
from lopa.runtime.errors import BadInputError
from tools.peers.agreement import Agreement
from tools.peers.measured import FIRST_TOKENS, Opening, OpeningCosts, Peaks, Piece, Setting, Step
from tools.peers.process_memory import ProcessMemory
from tools.peers.sides import BASELINE, SIDES


@dataclass(frozen=True)
class PeerReport:
    """Report of `python -m tools.peers` in one folder."""

    benchmark: str
    baseline: str
    """Name of the side that ratios refer to."""
    tokens_per_forward: float
    """Tokens that a forward is assumed to unmask. The tables give tokens per second at this number."""
    pieces: tuple[Piece, ...]
    openings: tuple[Opening, ...]
    left_out: dict[str, str]
    """Sides without an opening, with the reason."""


@dataclass(frozen=True)
class _Result:
    """A side's results, from a piece or an opening."""

    name: str
    threads: int
    costs: OpeningCosts
    steps: tuple[Step, ...]


def add_piece(folder: Path, name: str, piece: Piece, tokens_per_forward: float) -> PeerReport:
    """Add `piece` to the report NAME.json in `folder`, and write its tables again, atomically."""
    report = report_of_folder(folder, name)
    report = replace(
        report, baseline=piece.baseline, pieces=(*report.pieces, piece), tokens_per_forward=tokens_per_forward
    )
    return _written(folder, name, report)


def add_opening(folder: Path, name: str, opening: Opening, tokens_per_forward: float) -> PeerReport:
    """Add `opening` to the report NAME.json in `folder`, and write its tables again, atomically."""
    report = report_of_folder(folder, name)
    left_out = {side: reason for side, reason in report.left_out.items() if side != opening.side}
    openings = (*report.openings, opening)
    report = replace(report, openings=openings, left_out=left_out, tokens_per_forward=tokens_per_forward)
    return _written(folder, name, report)


def add_left_out(folder: Path, name: str, side: str, reason: str) -> PeerReport:
    """Note in the report that `side` could not be opened."""
    report = report_of_folder(folder, name)
    return _written(folder, name, replace(report, left_out=report.left_out | {side: reason}))


def report_of_folder(folder: Path, name: str) -> PeerReport:
    """Return the report in `folder`, or an empty one. Raises BadInputError for a foreign file."""
    path, _ = files_of_report(folder, name)
    if not path.exists():
        return PeerReport("peers", BASELINE.name, 1.0, (), (), {})
    try:
        return msgspec.json.decode(path.read_bytes(), type=PeerReport)
    except msgspec.DecodeError as error:
        raise BadInputError(
            f"{path}: {error}", expected="a report of tools.peers", remedy="choose another folder or name"
        ) from error


def ratios_to_baseline(pieces: Iterable[Piece]) -> dict[str, list[float]]:
    """Return each side's times divided by those of the piece's first side in the same round, since slow phases affect
    both.

    The pieces have the same shape and number of threads.
    """
    ratios: dict[str, list[float]] = {}
    for piece in pieces:
        seconds = {side.name: side.step.seconds for side in piece.sides}
        for name, found in seconds.items():
            ratios.setdefault(name, []).extend(map(truediv, found, seconds[piece.baseline]))
    return ratios


def tables_of_report(report: PeerReport) -> list[Table]:
    """Return tables of ratios, steps and opening per number of threads, then agreement, peak rates and versions."""
    results = list(_results(report))
    if not results:
        return []
    settings = [*(piece.setting for piece in report.pieces), *(each.setting for each in report.openings)]
    tables: list[Table] = []
    for threads in sorted({setting.threads for setting in settings}):
        where = f"{threads} thread{'s' if threads > 1 else ''}, {settings[0].machine.cpu}"
        pieces = [piece for piece in report.pieces if piece.setting.threads == threads]
        if pieces:
            tables.append(_ratio_table(pieces, where))
        chosen = [result for result in results if result.threads == threads]
        peaks = _best_peaks(setting for setting in settings if setting.threads == threads)
        tables += _step_tables(chosen, peaks, report.tokens_per_forward, where)
        tables.append(_opening_table(chosen, where))
    tables += [_agreement_table(results), _peaks_table(settings)]
    versions = {name: text for setting in settings for name, text in (setting.machine.versions | setting.peers).items()}
    tables.append(Table("Versions", ("package", "version"), tuple(versions.items())))
    left_out = {name: reason for piece in report.pieces for name, reason in piece.left_out.items()} | report.left_out
    if left_out:
        tables.append(Table("Skipped", ("side", "reason"), tuple(left_out.items())))
    return tables


def _written(folder: Path, name: str, report: PeerReport) -> PeerReport:
    write_report(folder, name, report, tables_of_report(report))
    return report


def _results(report: PeerReport) -> Iterator[_Result]:
    for piece in report.pieces:
        for side in piece.sides:
            yield _Result(side.name, piece.setting.threads, side.costs, (side.step,))
    for opening in report.openings:
        yield _Result(opening.side, opening.setting.threads, opening.costs, opening.steps)


def _ratio_table(pieces: Sequence[Piece], where: str) -> Table:
    """Return a table of times relative to the baseline, with a column per shape."""
    shapes: dict[ForwardShape, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.shape.branches * piece.shape.window):
        shapes.setdefault(piece.shape, []).append(piece)
    found = [ratios_to_baseline(same_shape) for same_shape in shapes.values()]
    names = _ordered({side.name for piece in pieces for side in piece.sides})
    return Table(
        f"Time relative to {pieces[0].baseline} in the same round, median (minimum to maximum): {where}",
        ("side", *map(_shape_text, shapes)),
        tuple((name, *(_spread(each[name], 2) if name in each else "" for each in found)) for name in names),
    )


def _step_tables(results: Sequence[_Result], peaks: Peaks, tokens_per_forward: float, where: str) -> Iterator[Table]:
    """Yield a table per shape: milliseconds, rates reached, and tokens per second. Its last rows are the limits."""
    shapes = sorted(
        {step.shape for result in results for step in result.steps},
        key=lambda shape: (shape.branches * shape.window, shape.branches, shape.prefix),
    )
    for shape in shapes:
        steps: dict[str, list[Step]] = {}
        for result in results:
            steps.setdefault(result.name, []).extend(step for step in result.steps if step.shape == shape)
        rows = [(name, *_step_cells(steps[name], tokens_per_forward)) for name in _ordered(steps) if steps[name]]
        yield Table(
            f"Step of {_shape_text(shape)}{_touched_text(steps.values())}: {where}",
            (
                "side",
                "ms, median (minimum to maximum)",
                "GOP/s",
                "GB/s",
                f"tokens/s at {tokens_per_forward:g} a forward",
            ),
            (
                *rows,
                ("limit: float32 product, copy", "", f"{peaks.float32 / 1e9:.0f}", f"{peaks.bandwidth / 1e9:.1f}", ""),
                ("limit: int8 product, copy", "", f"{peaks.int8 / 1e9:.0f}", f"{peaks.bandwidth / 1e9:.1f}", ""),
            ),
        )


def _touched_text(steps: Iterable[Sequence[Step]]) -> str:
    """Return the share of experts that the windows use, or nothing without experts."""
    shares = {step.work.touched for found in steps for step in found} - {None}
    return f", {max(share for share in shares if share is not None):.0%} of the experts" if shares else ""


def _step_cells(steps: Sequence[Step], tokens_per_forward: float) -> tuple[str, ...]:
    seconds = [each for step in steps for each in step.seconds]
    median, work = statistics.median(seconds), steps[0].work
    return (
        _spread([1e3 * each for each in seconds], 0),
        f"{work.operations / median / 1e9:.0f}",
        MISSING if work.matrix_bytes is None else f"{work.matrix_bytes / median / 1e9:.1f}",
        f"{tokens_per_forward / median:.2f}",
    )


def _opening_table(results: Sequence[_Result], where: str) -> Table:
    """Return a table of the medians of seconds, and of the largest memory."""
    names = _ordered({result.name for result in results})
    costs = {name: [result.costs for result in results if result.name == name] for name in names}
    prefixes = ", ".join(map(str, sorted({result.costs.prefix for result in results})))
    return Table(
        f"Opening and memory, medians and largest memory: {where}",
        (
            "side",
            "s to open",
            f"s of the first forward, {FIRST_TOKENS} tokens",
            f"s of prefill, {prefixes} tokens",
            "private GB",
            "mapped GB",
            "peak GB",
        ),
        tuple(
            (
                name,
                _median(each.open_seconds for each in found),
                _median(each.first_seconds for each in found),
                _median(each.prefill_seconds for each in found),
                *(
                    _largest_gb(None if each.memory is None else part(each.memory) for each in found)
                    for part in _MEMORY_PARTS
                ),
            )
            for name, found in costs.items()
        ),
    )


_MEMORY_PARTS: tuple[Callable[[ProcessMemory], int], ...] = (
    lambda memory: memory.private,
    lambda memory: memory.mapped,
    lambda memory: memory.peak,
)


def _agreement_table(results: Sequence[_Result]) -> Table:
    """Return the agreement of each side on its largest shape."""
    found: dict[str, tuple[int, Agreement]] = {}
    for result in results:
        for step in result.steps:
            rows = step.shape.branches * step.shape.window
            if result.name not in found or rows >= found[result.name][0]:
                found[result.name] = rows, step.agreement
    return Table(
        title="Agreement with the reference in float32 over the rows of the largest size",
        columns=("side", "rows", "same best token", "mean log-probability error", "mean entropy error"),
        rows=tuple(
            (name, str(rows), f"{of.same_best:.1%}", f"{of.logprob_error:.1e}", f"{of.entropy_error:.1e}")
            for name, (rows, of) in ((name, found[name]) for name in _ordered(found))
        ),
    )


def _best_peaks(settings: Iterable[Setting]) -> Peaks:
    """Return the best rates of any setting, since a busy machine lowers them."""
    return Peaks(*map(max, zip(*(astuple(setting.peaks) for setting in settings), strict=True)))


def _peaks_table(settings: Sequence[Setting]) -> Table:
    rows = []
    for threads in sorted({setting.threads for setting in settings}):
        peaks = _best_peaks(setting for setting in settings if setting.threads == threads)
        rows.append((str(threads), *(f"{rate / 1e9:.0f}" for rate in astuple(peaks))))
    return Table(
        title=f"Peak rates of {settings[0].machine.cpu}, {', '.join(settings[0].instructions)}",
        columns=("threads", "float32 GFLOP/s", "bfloat16 GFLOP/s", "int8 GOP/s", "copy GB/s"),
        rows=tuple(rows),
    )


def _ordered(names: Iterable[str]) -> list[str]:
    """Return names of sides in the order of SIDES."""
    found = set(names)
    return [side.name for side in SIDES if side.name in found]


def _shape_text(shape: ForwardShape) -> str:
    return f"{shape.branches} x {shape.window}, prefix {shape.prefix}"


def _spread(values: Sequence[float], digits: int) -> str:
    low, middle, high = (f"{each:.{digits}f}" for each in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"


def _median(values: Iterable[float | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{statistics.median(found):.2f}" if found else MISSING


def _largest_gb(values: Iterable[int | None]) -> str:
    found = [value for value in values if value is not None]
    return f"{max(found) / 1e9:.2f}" if found else MISSING
