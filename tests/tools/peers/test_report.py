"""Ratios to the baseline of the same round, the tables, and a report that grows piece by piece."""

from dataclasses import replace
from pathlib import Path

import pytest
from tools.peers.agreement import Agreement
from tools.peers.report import add_piece, ratios_to_baseline, report_of_folder, tables_of_report
from tools.peers.rounds import Peaks, Piece, SideRounds
from tools.peers.sides import BASELINE, SIDES

from lopa.bench.forward.work import ForwardShape
from lopa.bench.machine import Machine
from lopa.bench.table import Table
from lopa.runtime.errors import BadInputError

LLAMA, OPENVINO = SIDES[4].name, SIDES[6].name


def piece(seconds: dict[str, tuple[float, ...]], *, threads: int = 1, branches: int = 4, same: float = 0.9) -> Piece:
    return Piece(
        date="2026-11-22T00:00:00+00:00",
        command="python -m tools.peers",
        machine=Machine("A processor", 2, "Linux", 0.0, {"torch": "2.13"}),
        instructions=("avx2", "avx512_vnni"),
        peers={"llama.cpp": "llama_cpp_python-0.3"},
        threads=threads,
        shape=ForwardShape(branches, 64, 256, 64),
        peaks=Peaks(1e11 * threads, 2e11, 3e11, 1e10),
        sides=tuple(SideRounds(name, found, Agreement(same, 0.1, 0.01)) for name, found in seconds.items()),
        left_out={},
    )


def table_named(tables: list[Table], start: str) -> Table:
    (found,) = (table for table in tables if table.title.startswith(start))
    return found


def test_each_round_is_divided_by_its_own_baseline() -> None:
    """The machine is half as fast in the second round, which must not show as spread."""
    ratios = ratios_to_baseline([piece({BASELINE.name: (1.0, 2.0, 1.0), LLAMA: (3.0, 6.0, 4.5)})])
    assert ratios[LLAMA] == [3.0, 3.0, 4.5]


def test_pieces_of_one_shape_are_joined() -> None:
    """Each piece has its own baseline, and a side may be in only one of them."""
    ratios = ratios_to_baseline(
        [
            piece({BASELINE.name: (1.0,), LLAMA: (3.0,), OPENVINO: (0.5,)}),
            piece({BASELINE.name: (10.0, 10.0), LLAMA: (20.0, 10.0)}),
        ]
    )
    assert ratios == {BASELINE.name: [1.0] * 3, LLAMA: [3.0, 2.0, 1.0], OPENVINO: [0.5]}


def test_a_report_grows_and_its_tables_with_it(tmp_path: Path) -> None:
    add_piece(tmp_path, "peers", piece({BASELINE.name: (0.5,), LLAMA: (1.5,)}, branches=8, same=0.7))
    add_piece(tmp_path, "peers", piece({BASELINE.name: (0.1, 0.1), LLAMA: (0.2, 0.4)}, branches=1))
    report = add_piece(tmp_path, "peers", piece({BASELINE.name: (0.3,), OPENVINO: (0.3,)}, threads=2, branches=1))
    assert report_of_folder(tmp_path, "peers") == report
    tables = tables_of_report(report)
    alone = table_named(tables, "Time relative to ours int8 in the same round, median (minimum to maximum): 1 thread,")
    assert alone.columns == ("side", "1 x 64, prefix 256", "8 x 64, prefix 256")
    assert alone.rows == (
        (BASELINE.name, "1.00 (1.00 to 1.00)", "1.00 (1.00 to 1.00)"),
        (LLAMA, "3.00 (2.00 to 4.00)", "3.00 (3.00 to 3.00)"),
    )
    assert table_named(tables, "Milliseconds, median: 1 thread,").rows[1] == (LLAMA, "300", "1500")
    assert (
        len(
            table_named(
                tables, "Time relative to ours int8 in the same round, median (minimum to maximum): 2 threads,"
            ).rows
        )
        == 2
    )
    agreement = table_named(tables, "Agreement")
    assert [row[:3] for row in agreement.rows] == [
        (BASELINE.name, "512", "70.0%"),
        (LLAMA, "512", "70.0%"),
        (OPENVINO, "64", "90.0%"),
    ]
    assert table_named(tables, "Peak rates of A processor, avx2, avx512_vnni").rows[1] == (
        "2",
        "200",
        "200",
        "300",
        "10",
    )
    assert table_named(tables, "Versions").rows == (("torch", "2.13"), ("llama.cpp", "llama_cpp_python-0.3"))
    assert all(table.title in (tmp_path / "peers.md").read_text() for table in tables)


def test_skipped_sides_are_listed() -> None:
    found = replace(piece({BASELINE.name: (1.0,)}), left_out={LLAMA: "no cmake on this machine"})
    report = replace(report_of_folder(Path("nowhere"), "peers"), pieces=(found,))
    assert table_named(tables_of_report(report), "Skipped").rows == ((LLAMA, "no cmake on this machine"),)


@pytest.mark.parametrize("text", ["{}", '{"benchmark": "peers"', "[1]"])
def test_a_foreign_file_is_not_overwritten(text: str, tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(text)
    with pytest.raises(BadInputError, match=r"peers\.json"):
        add_piece(tmp_path, "peers", piece({BASELINE.name: (1.0,)}))
    assert (tmp_path / "peers.json").read_text() == text
