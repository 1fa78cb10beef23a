"""Ratios to the baseline of the same round, the tables, and a report that grows piece by piece."""

from dataclasses import replace
from pathlib import Path

import pytest
from tools.peers.agreement import Agreement
from tools.peers.measured import Opening, OpeningCosts, Peaks, Piece, Setting, SideRounds, Step
from tools.peers.process_memory import ProcessMemory
from tools.peers.report import (
    add_left_out,
    add_opening,
    add_piece,
    ratios_to_baseline,
    report_of_folder,
    tables_of_report,
)
from tools.peers.side_work import SideWork
from tools.peers.sides import BASELINE

from lopa.bench.forward.work import ForwardShape
from lopa.bench.machine import Machine
from lopa.bench.table import Table
from lopa.runtime.errors import BadInputError

LLAMA, OPENVINO = "llama.cpp Q8_0", "OpenVINO f32, our float32 graph"


def setting(threads: int = 1) -> Setting:
    return Setting(
        date="2026-11-22T00:00:00+00:00",
        command="python -m tools.peers",
        machine=Machine("A processor", 2, "Linux", 0.0, {"torch": "2.13"}),
        instructions=("avx2", "avx512_vnni"),
        peers={"llama.cpp": "llama_cpp_python-0.3"},
        threads=threads,
        peaks=Peaks(1e11 * threads, 2e11, 3e11, 1e10),
    )


def costs(open_seconds: float = 0.5, *, prefill: float | None = 1.25, gigabytes: float = 1) -> OpeningCosts:
    memory = ProcessMemory(*(int(share * gigabytes * 1e9) for share in (1, 2, 4)))
    return OpeningCosts(open_seconds, 0.125, prefill, 256, memory)


def step(seconds: tuple[float, ...], *, branches: int = 4, same: float = 0.9, matrix_bytes: int | None = 10**9) -> Step:
    shape = ForwardShape(branches, 64, 256, 64)
    return Step(shape, seconds, Agreement(same, 0.1, 0.01), SideWork(10**11, matrix_bytes))


def piece(seconds: dict[str, tuple[float, ...]], *, threads: int = 1, branches: int = 4, same: float = 0.9) -> Piece:
    sides = (SideRounds(name, step(each, branches=branches, same=same), costs()) for name, each in seconds.items())
    return Piece(setting(threads), tuple(sides), {})


def opening(side: str, turn: int, seconds: tuple[float, ...], found: OpeningCosts, **more: int | None) -> Opening:
    return Opening(setting(), side, turn, found, (step(seconds, branches=1, **more),))  # type: ignore[arg-type]


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
    add_piece(tmp_path, "peers", piece({BASELINE.name: (0.5,), LLAMA: (1.5,)}, branches=8, same=0.7), 4)
    add_piece(tmp_path, "peers", piece({BASELINE.name: (0.1, 0.1), LLAMA: (0.2, 0.4)}, branches=1), 4)
    report = add_piece(tmp_path, "peers", piece({BASELINE.name: (0.3,), OPENVINO: (0.3,)}, threads=2, branches=1), 4)
    assert report_of_folder(tmp_path, "peers") == report
    tables = tables_of_report(report)
    alone = table_named(tables, "Time relative to ours int8 in the same round, median (minimum to maximum): 1 thread,")
    assert alone.columns == ("side", "1 x 64, prefix 256", "8 x 64, prefix 256")
    assert alone.rows == (
        (BASELINE.name, "1.00 (1.00 to 1.00)", "1.00 (1.00 to 1.00)"),
        (LLAMA, "3.00 (2.00 to 4.00)", "3.00 (3.00 to 3.00)"),
    )
    eight = table_named(tables, "Step of 8 x 64, prefix 256: 1 thread,")
    assert eight.columns[-1] == "tokens/s at 4 a forward"
    assert eight.rows == (
        (BASELINE.name, "500 (500 to 500)", "200", "2.0", "8.00"),
        (LLAMA, "1500 (1500 to 1500)", "67", "0.7", "2.67"),
        ("limit: float32 product, copy", "", "100", "10.0", ""),
        ("limit: int8 product, copy", "", "300", "10.0", ""),
    )
    assert table_named(tables, "Step of 1 x 64, prefix 256: 1 thread,").rows[1][1] == "300 (200 to 400)"
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


def test_openings_are_joined_by_side(tmp_path: Path) -> None:
    """Seconds are medians over the openings, memory is the largest, and one without a cache has no prefill."""
    add_left_out(tmp_path, "peers", LLAMA, "not built")
    add_left_out(tmp_path, "peers", OPENVINO, "memory ran out")
    add_opening(tmp_path, "peers", opening(LLAMA, 0, (2.0, 4.0), costs(1.0, prefill=None)), 8)
    add_opening(tmp_path, "peers", opening(LLAMA, 1, (3.0,), costs(3.0, prefill=None, gigabytes=2)), 8)
    report = add_opening(tmp_path, "peers", opening(BASELINE.name, 0, (1.0,), costs(9.0), matrix_bytes=None), 8)
    tables = tables_of_report(report)
    assert table_named(tables, "Opening and memory, medians and largest memory: 1 thread,").rows == (
        (BASELINE.name, "9.00", "0.12", "1.25", "1.00", "2.00", "4.00"),
        (LLAMA, "2.00", "0.12", "-", "2.00", "4.00", "8.00"),
    )
    assert table_named(tables, "Step of 1 x 64").rows[:2] == (
        (BASELINE.name, "1000 (1000 to 1000)", "100", "-", "8.00"),
        (LLAMA, "3000 (2000 to 4000)", "33", "0.3", "2.67"),
    )
    assert not [table for table in tables if table.title.startswith("Time relative")]
    assert table_named(tables, "Skipped").rows == ((OPENVINO, "memory ran out"),)  # the other one was opened later


def test_skipped_sides_are_listed() -> None:
    found = replace(piece({BASELINE.name: (1.0,)}), left_out={LLAMA: "no cmake on this machine"})
    report = replace(report_of_folder(Path("nowhere"), "peers"), pieces=(found,))
    assert table_named(tables_of_report(report), "Skipped").rows == ((LLAMA, "no cmake on this machine"),)


@pytest.mark.parametrize("text", ["{}", '{"benchmark": "peers"', "[1]"])
def test_a_foreign_file_is_not_overwritten(text: str, tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(text)
    with pytest.raises(BadInputError, match=r"peers\.json"):
        add_piece(tmp_path, "peers", piece({BASELINE.name: (1.0,)}), 4)
    assert (tmp_path / "peers.json").read_text() == text
