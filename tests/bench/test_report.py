"""Reports: JSON that decodes to the same values, tables, the plot, and atomic files."""

import math
import struct
from dataclasses import replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from lopa.bench.comparison.paired_statistics import Interval, ScoreDifference, pareto_front
from lopa.bench.comparison.quality_figures import Comparison, rows_from_outcomes
from lopa.bench.comparison.quality_run import decode_outcomes, shared_settings
from lopa.bench.comparison.quality_table import QualityReport, tables_from_quality
from lopa.bench.comparison.score_plot import Panel, Point, draw_labels, draw_panel, panels_of_quality, plot_from_panels
from lopa.bench.comparison.variants import VARIANTS
from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.report import json_from_report, make_folder, prompt_file, run_now
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
        )


def test_json_decodes_to_the_report(report: QualityReport) -> None:
    text = json_from_report(report)
    assert json_from_report(msgspec.json.decode(text, type=QualityReport)) == text
    assert msgspec.json.decode(text, type=QualityReport).rows == report.rows
    plain = msgspec.json.decode(text)
    assert list(plain) == ["benchmark", "run", "prompts", "settings", "rows"]
    assert set(plain["rows"][0]["measure"]) >= {"score", "steps", "tokens_per_forward", "tokens_per_second", "seconds"}


def test_the_run_describes_bundle_prompts_and_machine(report: QualityReport, tiny_bundle: Path) -> None:
    run = report.run
    assert run.bundle == tiny_bundle.name
    assert run.bundle_sha256 == sha256_of_file(tiny_bundle / "manifest.json")
    assert run.command == "lopa-export bench 'a bundle'"
    assert report.prompts.sha256 == sha256_of_file(EVAL)
    assert run.machine.versions["onnxruntime"] == version("onnxruntime")
    assert run.machine.cpu
    assert run.machine.cores >= 1


def test_tables_show_the_rows(report: QualityReport) -> None:
    math, code, *curves = tables_from_quality(report)
    assert [table.title.rpartition(", ")[2] for table in curves] in ([], ["math prompts"])
    assert "score % (95 %)" in math.columns
    assert "score % (95 %)" not in code.columns
    speed, beside = (
        next(i for i, name in enumerate(math.columns) if name.startswith(word)) for word in ("tokens/f", "vs")
    )
    d2f = report.rows[2].measure
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
        assert [line[steps] for line in table.rows] == [str(row.measure.steps) for row in rows]


def test_bars_stay_in_their_cell() -> None:
    text = markdown_from_table(Table("title", ("name", "a|b"), (("x|y", "1"),)))
    assert text.splitlines()[2:] == ["| name | a\\|b |", "| :--- | ---: |", "| x\\|y |    1 |"]


def test_a_plot_has_a_panel_for_both_speeds(report: QualityReport) -> None:
    panels = panels_of_quality(report)
    assert [panel.speed for panel in panels] == [
        f"tokens per {unit}, up to end-of-text" for unit in ("forward", "second")
    ]
    math = [row for row in report.rows if row.kind == "math"]
    for panel, name in zip(panels, ("tokens_per_forward", "tokens_per_second"), strict=True):
        assert [point.speed for point in panel.points] == [getattr(row.measure, name) for row in math]
        assert [point.label for point in panel.points] == ["", "", "", "2", "3", "4", "6", "8"], (
            "the legend has the rest"
        )
        front = set(pareto_front([(point.speed, point.score) for point in panel.points]))
        assert {number for number, point in enumerate(panel.points) if point.on_front} == front
        assert 0 < len(front) < len(math)
    swept = replace(math[0], config="careful branches=4 distance=1 share=0.5", curve="careful distance=1")
    assert panels_of_quality(replace(report, rows=(swept,)))[0].points[0].label == "share=0.5", (
        "the legend has distance"
    )
    data = plot_from_panels(panels, "png")
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (2460, 720)
    assert plot_from_panels(panels, "pdf").startswith(b"%PDF-")
    moved = replace(
        panels[1], points=(replace(panels[1].points[0], speed=1.5, speed_interval=None), *panels[1].points[1:])
    )
    assert plot_from_panels([panels[0], moved], "png") != data
    many = [replace(row, config=f"{row.config} {number}") for number in range(2) for row in report.rows]
    crowded = panels_of_quality(replace(report, rows=tuple(many)))[0]
    assert all(bool(point.label) == point.on_front for point in crowded.points), "only the front has space for labels"
    every = [replace(row, curve=f"curve {number}") for number, row in enumerate([*many, *many])]
    drawn = plot_from_panels(panels_of_quality(replace(report, rows=tuple(every))), "svg").decode()
    named = {row.curve for row in every if row.measure.score}
    assert len(named) > 20
    assert all(drawn.count(f">{name}<") == 1 for name in (*named, "Pareto front")), "the legend has every strategy"


def test_labels_of_a_plot_do_not_overlap() -> None:
    places = ((8.0, 0.83), (8.0, 0.83), (8.1, 0.83), (6.0, 0.7), (6.1, 0.701), (9.0, 0.9))  # the first two are equal
    points = [Point(x, None, y, Interval(y - 0.05, y + 0.05), y == 0.9, f"branch={x:g}", "lopa") for x, y in places]
    axes = Figure().add_subplot()
    panel, styles = Panel("title", "speed", "score", tuple(points)), {"lopa": ((0.0, 0.0, 1.0), "o")}
    draw_panel(axes, panel, styles)
    axes.figure.draw_without_rendering()
    draw_labels(axes, panel, styles)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not [pair for pair in combinations(boxes, 2) if Bbox.intersection(*pair) is not None]
    centers = axes.transData.transform([(speed, 100 * score) for speed, score in places])
    for box, own in zip(boxes, centers, strict=True):
        assert axes.bbox.count_contains([box.min, box.max]) == 2
        near, *others = (math.dist(each, np.clip(each, box.min, box.max)) for each in (own, *centers))
        assert near < min(others) + 0.5, "no other point is nearer to a label"
    assert [line.get_marker() for line in axes.lines if line.get_color() == "0.8"] == ["o"], "also for one point"


def test_unwritable_paths_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="cannot write"):
        make_folder(tmp_path / "file" / "folder")
    (tmp_path / "taken").mkdir()
    with pytest.raises(BadInputError, match="taken"):
        write_atomically(tmp_path / "taken", b"data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


def test_the_comparison_column_shows_the_p_value(report: QualityReport) -> None:
    for (won, lost, p), cell in (
        ((20, 4, 0.0015), "d2f 0.9: +20 -4, <0.01"),
        ((3, 4, 1.0), "d2f 0.9: +3 -4, 1.00"),
    ):
        beside = Comparison("d2f 0.9", ScoreDifference(40, lost, won, 0.0, 0.0, p))
        math, *_ = tables_from_quality(replace(report, rows=(replace(report.rows[0], beside=beside),)))
        assert cell in math.rows[0]
