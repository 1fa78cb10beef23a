"""lopa-export bench: tables, files, and errors if something is missing."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import lopa_export, without
from tests.python_path import python_path

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import costs_from_bundle
from lopa.runtime.install_hint import pip_install
from lopa.runtime.sessions.onnxruntime_graph import available_cores
from lopa.tiny import ADAPTER, CHECKPOINT, EVAL

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": python_path(ROOT / "src")}


COARSE = """
from lopa.bench.forward import cost_measurement as costs
costs.GRIDS = (costs.Grid(branches=(1, 4), blocks=(1, 2), prefixes=(64, 128)),)
costs._MAX_ROUNDS, costs._HOST_PROMPTS = 6, 1
"""
"""Program that measures 8 sizes instead of 144, and less of everything else."""
SHORT = "from lopa.bench.comparison import quality_run; quality_run.MAX_NEW_TOKENS = 32"
"""Program that shortens answers to an eighth."""


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return lopa_export("bench", *arguments)


def bench_alone(*arguments: object, refuse: tuple[str, ...] = (), first: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process in which the packages in `refuse` cannot be imported.

    `first` is Python to run before the command, in the same process.
    """
    words = [sys.executable, "-c", without(*refuse, first=first), "bench", *map(str, arguments)]
    return subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)


def test_quality_writes_json_table_and_plot(tiny_bundle: Path, tmp_path: Path) -> None:
    output, plot = tmp_path / "out", tmp_path / "quality.svg"
    done = bench_alone(
        "quality",
        tiny_bundle,
        EVAL,
        "--limit",
        1,
        "--threads",
        1,
        "--output",
        output,
        "--plot",
        plot,
        refuse=("torch",),
        first=SHORT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (output / "quality.md").read_text() + "\n"
    assert done.stdout.count("| vanilla") == 2
    assert "decodes: 16 in " in done.stderr
    assert plot.read_bytes().startswith(b"<?xml")
    report = json.loads((output / "quality.json").read_bytes())
    assert len(report["rows"]) == 16
    assert report["run"]["threads"] == 1
    assert sorted(path.name for path in output.iterdir()) == ["quality.json", "quality.md", "quality.outcomes.jsonl"]
    assert done.stderr.splitlines()[-4:] == [f"wrote {path}" for path in (*sorted(output.iterdir()), plot)]


def test_speed_writes_json_and_table(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("lopa.bench.speed.speed_measurement"), "ROUNDS", 1)
    done = bench(
        *("speed", tiny_bundle, "--checkpoint", CHECKPOINT, "--lora", ADAPTER),
        *("--branches", 3, "--limit", 1, "--output", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert "same tokens on both sides" in done.stdout
    report = json.loads((tmp_path / "speed.json").read_bytes())
    assert report["settings"]["branches"] == 3
    assert report["settings"]["reference"] is True
    assert report["run"]["threads"] == 1
    assert report["measured"]["same_tokens"] is True
    assert (tmp_path / "speed.md").read_text() in done.stdout


def test_costs_are_stored_in_the_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    done = bench_alone("costs", bundle, "--threads", 1, refuse=("torch", "onnx", "transformers"), first=COARSE)
    assert done.returncode == 0, done.stderr
    before = {path.name for path in tiny_bundle.iterdir()}
    assert [path.name for path in bundle.iterdir() if path.name not in before] == ["costs.cpu.json"]
    points = costs_from_bundle(Bundle.open(bundle), "cpu", 1).costs.points
    assert len(points) == 8
    assert all(f"| {p.branches} x {p.window}, {p.prefix} " in done.stdout for p in points)
    assert "host time per step" in done.stdout


@pytest.mark.parametrize(
    ("name", "arguments", "taken", "work"),
    [
        ("quality", (EVAL, "--limit", 1, "--output", "out"), "out/quality.md", "decodes"),
        ("speed", ("--checkpoint", CHECKPOINT, "--lora", ADAPTER, "--output", "out"), "out/speed.json", "prompts"),
        ("quality", (EVAL, "--limit", 1, "--plot", "q.png"), "q.png", "decodes"),
    ],
)
def test_an_unwritable_file_is_reported_before_measuring(
    tiny_bundle: Path, tmp_path: Path, name: str, arguments: tuple[object, ...], taken: str, work: str
) -> None:
    (tmp_path / taken).mkdir(parents=True)
    done = bench(name, tiny_bundle, *(tmp_path / each if each in (taken, "out") else each for each in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot write {tmp_path / taken}" in done.stderr
    assert work not in done.stderr


@pytest.mark.parametrize("command", [("bench", "quality"), ("tune",)])
def test_a_plot_is_replaced_only_on_request(tiny_bundle: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    plot = tmp_path / "q.png"
    plot.write_bytes(b"earlier")
    prompts = (EVAL, "--limit", 1) if command[0] == "bench" else ("--eval", EVAL)
    done = lopa_export(*command, tiny_bundle, *prompts, "--plot", plot)
    assert (done.returncode, done.stdout, plot.read_bytes()) == (2, "", b"earlier")
    assert f"--plot {plot} exists" in done.stderr
    assert "choose another --plot, or --overwrite" in done.stderr


def test_a_plot_without_matplotlib_is_rejected_before_measuring(
    tiny_bundle: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prompts = tmp_path_factory.mktemp("prompts") / "eval.jsonl"
    prompts.write_text(EVAL.read_text().splitlines()[0] + "\n")
    arguments = ("quality", tiny_bundle, prompts, "--output", tmp_path / "out")
    done = bench_alone(*arguments, "--plot", tmp_path / "q.png", refuse=("matplotlib",))
    assert done.returncode == 3
    assert pip_install("plot") in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("quality", (EVAL, "--branches", 3), "no such option '--branches'"),
        ("quality", (EVAL, "--limit", 1, "--plot", "/nosuch/q.png"), "cannot write /nosuch/q.png"),
        ("quality", (EVAL, "--plot", "q.gif"), "plots are PNG, SVG or PDF, not .gif: name the file q.png"),
        ("costs", ("--device", "cpu:x"), "cpu:N or cpu:N-M"),
        ("scaling", ("--devices", "1,0"), "--devices '1,0'"),
        ("scaling", ("--devices", "1,,2"), "distinct integers from 1"),
        ("scaling", ("--devices", "1,9999"), f"at most {len(available_cores())}, the cores"),
        ("speed", ("--checkpoint", CHECKPOINT, "--device", "numpy"), "on the CPU"),
    ],
)
def test_wrong_usage(tiny_bundle: Path, name: str, arguments: tuple[object, ...], message: str) -> None:
    done = bench(name, tiny_bundle, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not re.search("Traceback|decodes", done.stderr)


def test_an_unwritable_table_in_the_bundle_is_reported_before_measuring(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (bundle / "costs.cpu.json").mkdir()
    done = bench("costs", bundle, "--threads", 1)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot write {bundle / 'costs.cpu.json'}" in done.stderr
    assert "forwards" not in done.stderr
