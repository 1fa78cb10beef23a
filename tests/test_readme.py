"""Every command and every example of the README runs unchanged."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lopa.runtime.device_families import FAMILIES

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
TOY, REAL_MODEL = README.partition("\n## Features")[0].split("\n## A real model\n")
PROMPT_FILES = (PROJECT / "docs" / "how-to" / "prompt-files.md").read_text(encoding="utf-8")
FIRST_BUNDLE = (PROJECT / "docs" / "get-started" / "first-bundle.md").read_text(encoding="utf-8")
MAX_LINES = 90
BIN = Path(sys.executable).parent
EXTRAS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def blocks(language: str, page: str = TOY) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page: str = TOY) -> list[str]:
    """Return the commands of a page's shell blocks. A prompt may contain a line break."""
    return re.findall(r"(?:\"[^\"]*\"|[^\"\n])+", "".join(blocks("sh", page)))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the project's files, in which the README's paths exist."""
    folder = tmp_path_factory.mktemp("readme") / "lopa-export"
    shutil.copytree(PROJECT, folder, symlinks=True, ignore=shutil.ignore_patterns(".*", "out", "*.egg-info", "tests"))
    (folder / "out").mkdir()
    return folder


def run(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables}
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )  # the README's commands are written for a shell


def test_make_demo_exports_verifies_and_decodes() -> None:
    """Run `make demo` in this environment. Its stamp exists only after pip has run for it."""
    result = run(f"make demo VENV={BIN.parent}", PROJECT)
    assert result.returncode == 0, result.stderr
    assert "cpu agrees with the references" in result.stdout
    steps = dict(re.findall(r"│ (D2F|LoPA, 5 branches) +│ (\d+)", result.stdout))
    assert int(steps["LoPA, 5 branches"]) < int(steps["D2F"])


def test_install_commands_name_extras_that_exist() -> None:
    for page in (PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "tools").rglob("*.md")):
        for named in re.findall(r'pip install[^\n`]*"\.\[([\w,]+)\]"', page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= set(EXTRAS), page


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= MAX_LINES


def test_every_other_command_runs(clone: Path, kept_traces_of_processes: dict[str, str]) -> None:
    """Compare the output with the README's. `make demo` traces the graph itself."""
    others = [command for command in commands() if not command.startswith(("make", ". "))]
    assert [command.split()[1] for command in others] == ["onnx", "generate"]
    for command in others:
        result = run(command, clone, **kept_traces_of_processes)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    answer, example_answer = (output.rstrip("\n") for output in blocks("text"))
    assert answer.endswith("#### 54"), "9 * 6"
    assert result.stdout.rstrip("\n") == answer
    (example,) = blocks("python")
    result = subprocess.run([sys.executable, "-c", example], cwd=clone, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert example_answer.endswith("#### 15"), "4 * 3 + 3"
    assert result.stdout.rstrip("\n") == example_answer


def test_the_commands_for_the_first_bundle_run(clone: Path, kept_traces_of_processes: dict[str, str]) -> None:
    """Run all commands except the server, which does not end, and its client. The README's export runs before."""
    shown = [command for command in commands(FIRST_BUNDLE) if command.startswith("lopa-export")]
    others = [
        f"{command} --overwrite" if " onnx " in command else command for command in shown if " serve " not in command
    ]
    assert [command.split()[1] for command in others] == ["onnx", "verify", "inspect", "generate", "generate"]
    for command in others:
        result = run(command, clone, **kept_traces_of_processes)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    (example,) = blocks("python", FIRST_BUNDLE)
    result = subprocess.run([sys.executable, "-c", example], cwd=clone, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_support_matrix_has_every_device() -> None:
    """Check also that a claim about hardware names the card, the date and a version."""
    matrix = README.partition("## Support matrix")[2].partition("\n## ")[0]
    rows = [line for line in matrix.splitlines() if line.startswith("|")]
    for name in FAMILIES:
        assert any(f"`{name}" in row.split("|")[1] for row in rows), name
    on_hardware = r"(make test-\w+`; )?NVIDIA \w+, 20\d\d-\d\d-\d\d, driver [\d.]+(, [\w-]+ [\d.]+)?"
    for row in rows:
        name, executed = (cell.strip() for cell in row.split("|")[1:3])
        if executed and re.search("`(cuda|webgpu|tensorrt|ascend|qnn|openvino:[GN]PU)|kernels", name):
            assert re.fullmatch(on_hardware, executed.lstrip("`")) or executed == "no: `make test-qnn`", row
    pins = dict(
        re.findall(r"^([\w.-]+)==(\S+)$", (PROJECT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for library in ("onnxruntime", "openvino", "numpy", "mpich", "mpi4py", "starlette", "uvicorn", "triton", "ray"):
        assert pins[library] in matrix, f"{library} {pins[library]}"


def test_the_embedded_model_is_called_a_toy() -> None:
    assert re.search(r"toy of 2\.4 million parameters and is often wrong", README, re.DOTALL)


def test_every_command_for_prompt_files_runs(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bundle").symlink_to(tiny_bundle)
    for command in commands(PROMPT_FILES):
        result = run(command, tmp_path)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    results = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [(line.get("id"), line["line"]) for line in results] == [("sum", 1), (None, 2)]
