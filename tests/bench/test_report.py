"""Reports: JSON that decodes to the same values, tables, the plot, and atomic files."""

import struct
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.machine import date_now, machine_now
from lopa.bench.quality import quality_plot
from lopa.bench.quality.curves import curves_from_outcomes
from lopa.bench.quality.decodes import decode_outcomes, shared_settings
from lopa.bench.quality.intervals import Interval
from lopa.bench.quality.paired_comparison import Comparison
from lopa.bench.quality.pareto import pareto_front
from lopa.bench.quality.quality_figures import Row, rows_from_outcomes
from lopa.bench.quality.quality_plot import PER_FORWARD, PER_SECOND, png_from_quality
from lopa.bench.quality.quality_report import QualityReport
from lopa.bench.quality.quality_table import tables_from_quality
from lopa.bench.quality.variants import VARIANTS
from lopa.bench.report import json_from_report, make_folder, prompt_file, run_now, write_report
from lopa.bench.table import Table, markdown_from_table
from lopa.runtime.bundle import sha256_of_file
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_atomically
from lopa.tiny import EVAL


@pytest.fixture(scope="module")
def report(tiny_bundle: Path) -> QualityReport:
    items = eval_set_from_jsonl(EVAL, limit=2)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        run = run_now(decoder.bundle, device="cpu", threads=1, arguments=["lopa-export", "bench", "a bundle"])
        outcomes = decode_outcomes(decoder, items, VARIANTS)
        return QualityReport(
            "quality",
            run,
            prompt_file(EVAL, 2),
            shared_settings(decoder, VARIANTS),
            rows_from_outcomes(items, outcomes),
            curves_from_outcomes(items, outcomes),
        )


def test_json_decodes_to_the_report(report: QualityReport) -> None:
    text = json_from_report(report)
    assert json_from_report(msgspec.json.decode(text, type=QualityReport)) == text
    assert msgspec.json.decode(text, type=QualityReport).rows == report.rows
    plain = msgspec.json.decode(text)
    assert list(plain) == ["benchmark", "run", "prompts", "settings", "rows", "curves", "outcomes"]
    assert set(plain["rows"][0]["default"]) >= {"score", "steps", "tokens_per_forward", "tokens_per_second", "seconds"}


def test_the_run_describes_bundle_prompts_and_machine(report: QualityReport, tiny_bundle: Path) -> None:
    run = report.run
    assert run.bundle == tiny_bundle.name
    assert run.bundle_sha256 == sha256_of_file(tiny_bundle / "manifest.json")
    assert run.command == "lopa-export bench 'a bundle'"
    assert report.prompts.sha256 == sha256_of_file(EVAL)
    assert run.machine.versions["onnxruntime"] == version("onnxruntime")
    assert run.machine.cpu
    assert run.machine.cores >= 1


def test_date_is_now_in_utc() -> None:
    found = datetime.fromisoformat(date_now())
    assert found.utcoffset() == datetime.now(UTC).utcoffset()
    assert abs((datetime.now(UTC) - found).days) == 0
    assert machine_now().versions["numpy"] == version("numpy")


def test_tables_show_the_rows(report: QualityReport) -> None:
    math, code, curves = tables_from_quality(report)
    assert "score % (95 %)" in math.columns
    assert "score % (95 %)" not in code.columns
    assert [line[0] for line in curves.rows] == [curve.name for curve in report.curves]
    aups = [(curve.aup, curve.aup_interval) for curve in report.curves]
    assert [line[1] for line in curves.rows] == [
        f"{aup:.0f} ({own.low:.0f}-{own.high:.0f})" for aup, own in aups if own
    ]
    speed, beside = (
        next(i for i, name in enumerate(math.columns) if name.startswith(word)) for word in ("tokens/f", "vs")
    )
    d2f = report.rows[2].default
    own = d2f.tokens_per_forward_interval
    assert own is not None
    assert math.rows[2][speed] == f"{d2f.tokens_per_forward:.2f} ({own.low:.2f}-{own.high:.2f})"
    assert [line[beside].partition(":")[0] for line in math.rows] == ["d2f", "d2f", "-", *["d2f"] * 5]
    assert not any(name.startswith("vs ") for name in code.columns), "code is not scored"
    for table, kind in ((math, "math"), (code, "code")):
        rows = [row for row in report.rows if row.kind == kind]
        assert [line[0] for line in table.rows] == [row.config for row in rows]
        assert all(len(line) == len(table.columns) for line in table.rows)
        steps = table.columns.index("steps")
        assert [line[steps] for line in table.rows] == [str(row.default.steps) for row in rows]
        published = table.columns.index("reference steps")
        assert [line[published] for line in table.rows][:3] == ["-", "-", str(rows[2].published.steps)]  # type: ignore[union-attr]


def test_the_comparison_column_shows_the_p_value(report: QualityReport) -> None:
    for beside, cell in (
        (Comparison("d2f 0.9", 20, 4, 0.0015), "d2f 0.9: +20 -4, <0.01"),
        (Comparison("d2f 0.9", 3, 4, 1.0), "d2f 0.9: +3 -4, 1.00"),
    ):
        math, *_ = tables_from_quality(replace(report, rows=(replace(report.rows[0], beside=beside),)))
        assert cell in math.rows[0]


def test_markdown_is_aligned() -> None:
    text = markdown_from_table(Table("title", ("name", "n"), (("a", "1"), ("long name", "1000"))))
    assert text.splitlines() == [
        "title",
        "",
        "| name      |    n |",
        "| :-------- | ---: |",
        "| a         |    1 |",
        "| long name | 1000 |",
    ]


def test_bars_stay_in_their_cell() -> None:
    text = markdown_from_table(Table("title", ("name", "a|b"), (("x|y", "1"),)))
    assert text.splitlines()[2:] == ["| name | a\\|b |", "| :--- | ---: |", "| x\\|y |    1 |"]


def test_missing_intervals_are_not_shown(report: QualityReport) -> None:
    alone = [replace(row, default=replace(row.default, tokens_per_forward_interval=None)) for row in report.rows]
    math, *_ = tables_from_quality(replace(report, rows=tuple(alone)))
    assert f"{alone[2].default.tokens_per_forward:.2f}" in math.rows[2]
    assert png_from_quality(replace(report, rows=tuple(alone)), [PER_FORWARD]) != png_from_quality(
        report, [PER_FORWARD]
    ), "no error bars"


def test_the_plot_is_a_png_that_depends_on_the_scores(report: QualityReport) -> None:
    data = png_from_quality(report, [PER_FORWARD])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1080, 720)
    moved = [
        replace(
            row, default=replace(row.default, tokens_per_forward=99.0, tokens_per_forward_interval=Interval(90.0, 99.5))
        )
        if row.config == "lopa-8"
        else row
        for row in report.rows
    ]
    assert png_from_quality(report, [PER_FORWARD]) == data
    assert png_from_quality(replace(report, rows=tuple(moved)), [PER_FORWARD]) != data


def test_both_speeds_have_a_panel(report: QualityReport) -> None:
    data = png_from_quality(report)
    assert struct.unpack(">II", data[16:24]) == (2160, 720)
    first, *rest = report.rows
    for name in ("tokens_per_forward", "tokens_per_second"):
        other = replace(first.default, **{name: 1.5, f"{name}_interval": None})
        moved = replace(report, rows=(replace(first, default=other), *rest))
        assert png_from_quality(moved) != data


def test_dominated_configurations_are_grey(report: QualityReport) -> None:
    """Bold text and curves of the front's colour belong to the Pareto front; the others are grey."""
    math = [row for row in report.rows if row.kind == "math"]
    front = {math[i].config for i in pareto_front([(each.default.tokens_per_forward, _share(each)) for each in math])}
    assert 0 < len(front) < len(math)
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    quality_plot._draw(axes, math, PER_FORWARD, few=True)
    bold = {text.get_text() for text in axes.texts if text.get_fontweight() == "bold"}
    assert bold == front
    assert {text.get_text() for text in axes.texts} == {row.config for row in math}
    colours = {str(line.get_color()) for line in axes.lines}
    assert colours == {quality_plot._FRONT, quality_plot._GREY}


def _share(row: Row) -> float:
    assert row.default.score is not None
    return row.default.score.share


def test_files_are_written_whole(tmp_path: Path, report: QualityReport) -> None:
    folder = tmp_path / "new" / "folder"
    make_folder(folder)
    write_report(folder, "quality", report, tables_from_quality(report))
    assert sorted(path.name for path in folder.iterdir()) == ["quality.json", "quality.md"]
    assert (folder / "quality.json").read_bytes() == json_from_report(report)
    assert (folder / "quality.md").read_text().count("| lopa-8") == 2


def test_unwritable_paths_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="cannot write"):
        make_folder(tmp_path / "file" / "folder")
    (tmp_path / "taken").mkdir()
    with pytest.raises(BadInputError, match="taken"):
        write_atomically(tmp_path / "taken", b"data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


def test_a_plot_against_seconds(report: QualityReport) -> None:
    """Slower decoding changes the plot per second but not the plot per forward."""
    first, *rest = report.rows
    slower = replace(first.default, tokens_per_second=1.0, tokens_per_second_interval=Interval(0.5, 2.0))
    moved = replace(report, rows=(replace(first, default=slower), *rest))
    assert png_from_quality(moved, [PER_SECOND]) != png_from_quality(report, [PER_SECOND])
    assert png_from_quality(moved, [PER_FORWARD]) == png_from_quality(report, [PER_FORWARD])
