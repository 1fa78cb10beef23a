"""Every program of examples/ runs as its first lines say (agreement_strategy: tests/runtime/strategy)."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.serve.servers import serving

EXAMPLES = Path(__file__).parents[2] / "examples"
EVAL_SET = EXAMPLES.parent / "src" / "lopa" / "tiny" / "eval.jsonl"
TESTED_ELSEWHERE = {"plain_lopa.py", "run_plain_lopa.py"}


def output_of(name: str, *arguments: object, **environment: str) -> str:
    """Return the example's output. A failure raises an error, and its traceback is on standard error."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_has_a_test_and_a_line_of_purpose() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")} - TESTED_ELSEWHERE
    tested = set(re.findall(r'output_of\(\s*"(\w+\.py)"', Path(__file__).read_text()))
    assert names == tested
    for name in names - {"trace_notebook.py"}:
        assert re.match(rf'"""[A-Z].*python examples/{name} ', (EXAMPLES / name).read_text()), name


def test_examples_without_arguments_show_their_usage() -> None:
    names = sorted(path.name for path in EXAMPLES.glob("*.py") if "argparse" in path.read_text())
    started = [subprocess.Popen([sys.executable, EXAMPLES / name], stderr=subprocess.PIPE, text=True) for name in names]
    for name, process in zip(names, started, strict=True):
        assert process.communicate()[1].startswith(f"usage: {name} "), name
        assert process.returncode == 2
    assert len(names) == 9


def test_stream_to_terminal(tiny_bundle: Path) -> None:
    *answer, speed = output_of("stream_to_terminal.py", tiny_bundle).splitlines()
    assert answer[-1].startswith("#### ")
    assert float(speed.split()[-3]) > 2


def test_asyncio_service(tiny_bundle: Path) -> None:
    lines = output_of("asyncio_service.py", tiny_bundle).splitlines()
    assert len(lines) == 6
    assert all("-> #### " in line and "(eos, " in line for line in lines)


def test_openai_drafts(tiny_bundle: Path) -> None:
    with serving(tiny_bundle) as server:
        drafts, answer = output_of("openai_drafts.py", server.url).split("answer: ")
    assert drafts.count("draft: ") >= 2
    assert "░" in drafts
    assert "#### " in answer


@pytest.fixture
def base_bundle(export_tiny: Callable[..., Path]) -> Path:
    """Bundle of the embedded base without its adapter, which fills holes."""
    pytest.importorskip("torch")
    return export_tiny(with_logits=False, lora=None)


def test_complete_function(base_bundle: Path) -> None:
    tokens = 8  # too few to reach the last line, which is given
    code, forwards = output_of("complete_function.py", base_bundle, tokens).split("\n\n")
    lines = code.splitlines()
    assert lines[:2] == ["def solve_count_even(nums):", '    """Count the nums that are even."""']
    assert lines[4].startswith("        if ")
    assert lines[-1] == "    return out"
    assert re.fullmatch(r"\d+ tokens in \d+ forwards\n", forwards)


def test_fill_form(base_bundle: Path) -> None:
    *fields, forwards = output_of("fill_form.py", base_bundle).splitlines()
    assert fields == ["after buying: 19", "before giving: 19", "answer: 15"]
    assert int(forwards.split()[-2]) < 9  # tokens of the holes


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="llguidance is not installed")
def test_structured_output(tiny_bundle: Path) -> None:
    item, count = output_of("structured_output.py", tiny_bundle).split()
    assert item in ("candies", "shells")
    assert 0 <= int(count) <= 999


def test_batch_with_resume(tiny_bundle: Path, tmp_path: Path) -> None:
    lines = output_of("batch_with_resume.py", tiny_bundle, tmp_path / "new").splitlines()
    assert [line.split()[0] for line in lines] == list("012345")


def test_quality_curve(tiny_bundle: Path, tmp_path: Path) -> None:
    curve = tmp_path / "curve.png"
    lines = output_of("quality_curve.py", tiny_bundle, EVAL_SET, curve, 4).splitlines()
    speeds = [float(line.split()[2]) for line in lines]
    assert len(speeds) == 5
    assert speeds[0] < speeds[-1]
    assert curve.read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_trace_notebook(tiny_bundle: Path, tmp_path: Path) -> None:
    plot = tmp_path / "trace.png"
    lines = output_of("trace_notebook.py", BUNDLE=str(tiny_bundle), PLOT=str(plot)).splitlines()
    tokens = [int(line.split()[1]) for line in lines if re.match(r"\d+ +\d+ +\d\.\d+$", line)]
    assert lines[-1] == f"{sum(tokens)} tokens in {len(tokens)} steps"
    assert plot.read_bytes().startswith(b"\x89PNG")
