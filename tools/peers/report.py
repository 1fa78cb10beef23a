"""Stored pieces of a comparison, and their tables: times relative to our int8, with spread."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from operator import truediv
from pathlib import Path

import msgspec

from lopa.bench.forward.work import ForwardShape
from lopa.bench.report import files_of_report, write_report
from lopa.bench.table import Table
from lopa.runtime.errors import BadInputError
from tools.peers.agreement import Agreement
from tools.peers.rounds import Piece
from tools.peers.sides import BASELINE, SIDES


@dataclass(frozen=True)
class PeerReport:
    """Report of `python -m tools.peers` in one folder."""

    benchmark: str
    baseline: str
    """Name of the side that ratios refer to."""
    pieces: tuple[Piece, ...]


def add_piece(folder: Path, name: str, piece: Piece) -> PeerReport:
    """Add `piece` to the report NAME.json in `folder`, and write its tables again, atomically."""
    report = report_of_folder(folder, name)
    report = replace(report, pieces=(*report.pieces, piece))
    write_report(folder, name, report, tables_of_report(report))
    return report


def report_of_folder(folder: Path, name: str) -> PeerReport:
    """Return the report in `folder`, or an empty one. Raises BadInputError for a foreign file."""
    path, _ = files_of_report(folder, name)
    if not path.exists():
        return PeerReport("peers", BASELINE.name, ())
    try:
        return msgspec.json.decode(path.read_bytes(), type=PeerReport)
    except msgspec.DecodeError as error:
        raise BadInputError(
            f"{path}: {error}", expected="a report of tools.peers", remedy="choose another folder or name"
        ) from error


def ratios_to_baseline(pieces: Iterable[Piece]) -> dict[str, list[float]]:
    """Return each side's times divided by the baseline's of the same round, since slow phases affect both.

    The pieces have the same shape and number of threads.
    """
    ratios: dict[str, list[float]] = {}
    for piece in pieces:
        seconds = {side.name: side.seconds for side in piece.sides}
        for name, found in seconds.items():
            ratios.setdefault(name, []).extend(map(truediv, found, seconds[BASELINE.name]))
    return ratios


def tables_of_report(report: PeerReport) -> list[Table]:
    """Return tables of times per number of threads, agreement, peak rates and versions."""
    tables: list[Table] = []
    for threads in sorted({piece.threads for piece in report.pieces}):
        tables += _time_tables([piece for piece in report.pieces if piece.threads == threads], threads)
    tables += [_agreement_table(report.pieces), _peaks_table(report.pieces)]
    versions = {name: text for piece in report.pieces for name, text in (piece.machine.versions | piece.peers).items()}
    tables.append(Table("Versions", ("package", "version"), tuple(versions.items())))
    left_out = {name: reason for piece in report.pieces for name, reason in piece.left_out.items()}
    if left_out:
        tables.append(Table("Skipped", ("side", "reason"), tuple(left_out.items())))
    return tables


def _time_tables(pieces: Sequence[Piece], threads: int) -> Iterator[Table]:
    """Yield a table of times relative to the baseline and one of milliseconds, with a column per shape."""
    shapes: dict[ForwardShape, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.shape.branches * piece.shape.window):
        shapes.setdefault(piece.shape, []).append(piece)
    where = f"{threads} thread{'s' if threads > 1 else ''}, {pieces[0].machine.cpu}"
    columns = ("side", *(f"{shape.branches} x {shape.window}, prefix {shape.prefix}" for shape in shapes))
    ratios = [ratios_to_baseline(same_threads) for same_threads in shapes.values()]
    for title, text_of, found in (
        (f"Time relative to {BASELINE.name} in the same round, median (minimum to maximum)", _spread, ratios),
        ("Milliseconds, median", _milliseconds, [_seconds(same_threads) for same_threads in shapes.values()]),
    ):
        rows = ((name, *(text_of(each[name]) if name in each else "" for each in found)) for name in _names(pieces))
        yield Table(f"{title}: {where}", columns, tuple(rows))


def _agreement_table(pieces: Sequence[Piece]) -> Table:
    """Return the agreement of each side on its largest shape."""
    found: dict[str, tuple[int, Agreement]] = {}
    for piece in pieces:
        rows = piece.shape.branches * piece.shape.window
        for side in piece.sides:
            if side.name not in found or rows >= found[side.name][0]:
                found[side.name] = rows, side.agreement
    return Table(
        title="Agreement with our float32 bundle over the rows of the largest size",
        columns=("side", "rows", "same best token", "mean log-probability error", "mean entropy error"),
        rows=tuple(
            (name, str(rows), f"{of.same_best:.1%}", f"{of.logprob_error:.1e}", f"{of.entropy_error:.1e}")
            for name, (rows, of) in ((name, found[name]) for name in _names(pieces))
        ),
    )


def _peaks_table(pieces: Sequence[Piece]) -> Table:
    """Return the best rates of any piece, since a busy machine lowers them."""
    rows = []
    for threads in sorted({piece.threads for piece in pieces}):
        same_threads = [piece.peaks for piece in pieces if piece.threads == threads]
        rows.append(
            (str(threads), *(f"{max(rates) / 1e9:.0f}" for rates in zip(*map(astuple, same_threads), strict=True)))
        )
    return Table(
        title=f"Peak rates of {pieces[0].machine.cpu}, {', '.join(pieces[0].instructions)}",
        columns=("threads", "float32 GFLOP/s", "bfloat16 GFLOP/s", "int8 GOP/s", "copy GB/s"),
        rows=tuple(rows),
    )


def _seconds(pieces: Iterable[Piece]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for side in (side for piece in pieces for side in piece.sides):
        found.setdefault(side.name, []).extend(side.seconds)
    return found


def _names(pieces: Iterable[Piece]) -> list[str]:
    """Return the timed sides in the order of SIDES."""
    timed = {side.name for piece in pieces for side in piece.sides}
    return [side.name for side in SIDES if side.name in timed]


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _milliseconds(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.0f}"
