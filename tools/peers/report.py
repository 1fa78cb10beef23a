"""Pieces of a comparison on disk, and their tables: times over our int8, with spread. Does not measure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lopa.bench.forward.work import ForwardShape
from lopa.bench.report import files_of_report, write_report
from lopa.bench.table import Table
from lopa.runtime.errors import BadInputError
from tools.peers.agreement import Agreement
from tools.peers.rounds import Peaks, Piece
from tools.peers.sides import BASELINE, SIDES


@dataclass(frozen=True)
class PeerReport:
    """Everything that `python -m tools.peers` measured into one folder."""

    benchmark: str
    baseline: str
    """The side that ratios are over."""
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Ratio:
    """Time of a side over that of the baseline in the same round."""

    median: float
    least: float
    most: float
    rounds: int


def add_piece(folder: Path, name: str, piece: Piece) -> PeerReport:
    """Add `piece` to the report NAME.json in `folder`, and write its tables again, each whole."""
    report = report_of_folder(folder, name)
    report = replace(report, pieces=(*report.pieces, piece))
    write_report(folder, name, report, tables_of_report(report))
    return report


def report_of_folder(folder: Path, name: str) -> PeerReport:
    """What was measured into `folder` so far. Raises BadInputError for a file of something else."""
    path, _ = files_of_report(folder, name)
    if not path.exists():
        return PeerReport("peers", BASELINE.name, ())
    try:
        return msgspec.json.decode(path.read_bytes(), type=PeerReport)
    except msgspec.DecodeError as error:
        raise BadInputError(
            f"{path}: {error}", expected="a report of tools.peers", remedy="choose another folder or name"
        ) from error


def ratios_to_baseline(pieces: Iterable[Piece]) -> dict[str, Ratio]:
    """By side, over all rounds of `pieces`, which are of one shape and number of threads.

    Each time is divided by the baseline's of the same round: a slow minute slows both.
    """
    quotients: dict[str, list[float]] = {}
    for piece in pieces:
        seconds = {side.name: side.seconds for side in piece.sides}
        for name, found in seconds.items():
            quotients.setdefault(name, []).extend(
                mine / base for mine, base in zip(found, seconds[BASELINE.name], strict=True)
            )
    return {
        name: Ratio(statistics.median(found), min(found), max(found), len(found)) for name, found in quotients.items()
    }


def tables_of_report(report: PeerReport) -> list[Table]:
    """For each number of threads: times over the baseline's, milliseconds; then agreement, and the machine's peaks."""
    tables = []
    for threads in sorted({piece.threads for piece in report.pieces}):
        pieces = [piece for piece in report.pieces if piece.threads == threads]
        tables += [_ratio_table(pieces, threads), _seconds_table(pieces, threads)]
    tables += [_agreement_table(report.pieces), _peaks_table(report.pieces)]
    versions = {name: version for piece in report.pieces for name, version in _versions(piece).items()}
    tables.append(Table("Versions", ("of", "version"), tuple(versions.items())))
    left_out = {name: reason for piece in report.pieces for name, reason in piece.left_out.items()}
    if left_out:
        tables.append(Table("Left out", ("side", "why"), tuple(left_out.items())))
    return tables


def _ratio_table(pieces: Sequence[Piece], threads: int) -> Table:
    ratios = {shape: ratios_to_baseline(some) for shape, some in _by_shape(pieces).items()}
    return Table(
        title=f"Time over {BASELINE.name} in the same round, median (least to most): {_where(pieces, threads)}",
        columns=("side", *map(_size, ratios)),
        rows=tuple(
            (name, *(_ratio_text(of_shape.get(name)) for of_shape in ratios.values())) for name in _names(pieces)
        ),
    )


def _seconds_table(pieces: Sequence[Piece], threads: int) -> Table:
    shapes = _by_shape(pieces)
    return Table(
        title=f"Milliseconds, median: {_where(pieces, threads)}",
        columns=("side", *map(_size, shapes)),
        rows=tuple((name, *(_milliseconds(some, name) for some in shapes.values())) for name in _names(pieces)),
    )


def _agreement_table(pieces: Sequence[Piece]) -> Table:
    """Of the largest shape of each side."""
    found: dict[str, tuple[int, Agreement]] = {}
    for piece in pieces:
        rows = piece.shape.branches * piece.shape.window
        for side in piece.sides:
            if side.name not in found or rows >= found[side.name][0]:
                found[side.name] = rows, side.agreement
    return Table(
        title="Agreement with our float32 bundle, over the rows of the largest size",
        columns=("side", "rows", "same best token", "mean log-probability error", "mean entropy error"),
        rows=tuple(
            (name, str(rows), f"{of.same_best:.1%}", f"{of.logprob_error:.1e}", f"{of.entropy_error:.1e}")
            for name, (rows, of) in ((name, found[name]) for name in _names(pieces))
        ),
    )


def _peaks_table(pieces: Sequence[Piece]) -> Table:
    """The best that any piece measured, since a busy machine lowers them."""
    rows = []
    for threads in sorted({piece.threads for piece in pieces}):
        some = [piece.peaks for piece in pieces if piece.threads == threads]
        rows.append((str(threads), *(f"{max(rates) / 1e9:.0f}" for rates in zip(*map(_rates, some), strict=True))))
    return Table(
        title=f"Peaks of {pieces[0].machine.cpu}, {', '.join(pieces[0].instructions)}",
        columns=("threads", "float32 GFLOP/s", "bfloat16 GFLOP/s", "int8 GOP/s", "copy GB/s"),
        rows=tuple(rows),
    )


def _versions(piece: Piece) -> dict[str, str]:
    return {**piece.machine.versions, **piece.peers}


def _rates(peaks: Peaks) -> tuple[float, ...]:
    return peaks.float32, peaks.bfloat16, peaks.int8, peaks.bandwidth


def _by_shape(pieces: Iterable[Piece]) -> Mapping[ForwardShape, list[Piece]]:
    """Smallest first."""
    found: dict[ForwardShape, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.shape.branches * piece.shape.window):
        found.setdefault(piece.shape, []).append(piece)
    return found


def _names(pieces: Iterable[Piece]) -> list[str]:
    """Of the sides that were timed, in the order of SIDES."""
    timed = {side.name for piece in pieces for side in piece.sides}
    return [side.name for side in SIDES if side.name in timed]


def _where(pieces: Sequence[Piece], threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}, {pieces[0].machine.cpu}"


def _size(shape: ForwardShape) -> str:
    return f"{shape.branches} x {shape.window}, prefix {shape.prefix}"


def _ratio_text(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f} ({ratio.least:.2f} to {ratio.most:.2f})"


def _milliseconds(pieces: Iterable[Piece], name: str) -> str:
    found = [each for piece in pieces for side in piece.sides if side.name == name for each in side.seconds]
    return f"{statistics.median(found) * 1e3:.0f}" if found else ""
