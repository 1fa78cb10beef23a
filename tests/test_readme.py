"""Every command and every example of the README runs as it stands."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
BATCHES = (PROJECT / "docs" / "batches.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
EXTRAS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page: str = README) -> list[str]:
    """A prompt has a line break in it, so a command may have several lines."""
    return re.findall(r"(?:\"[^\"]*\"|[^\"\n])+", "".join(blocks("sh", page)))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project's files, in which the README's paths hold."""
    folder = tmp_path_factory.mktemp("readme") / "lopa-export"
    shutil.copytree(PROJECT, folder, symlinks=True, ignore=shutil.ignore_patterns(".*", "out", "*.egg-info", "tests"))
    (folder / "out").mkdir()
    return folder


def run(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables}
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )  # the README's commands are written for a shell


def test_the_two_commands_come_first() -> None:
    assert commands()[:2] == ["make demo", "make test"]


def test_make_demo_exports_verifies_and_decodes() -> None:
    """In this environment, whose stamp says that set-up is done only after pip has run for `make demo`."""
    result = run(f"make demo VENV={BIN.parent}", PROJECT)
    assert result.returncode == 0, result.stderr
    assert "cpu agrees with the references" in result.stdout
    steps = dict(re.findall(r"│ (D2F|LoPA, 5 branches) +│ (\d+)", result.stdout))
    assert int(steps["LoPA, 5 branches"]) < int(steps["D2F"])


def test_make_test_is_what_ci_runs() -> None:
    assert "make test" in (PROJECT / ".ci" / "run").read_text().splitlines()


def test_install_commands_name_extras_that_exist() -> None:
    installs = [command for command in commands() if command.startswith("pip")]
    assert installs == ['pip install -c constraints.txt ".[export,plot]"']
    for page in (PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")):
        for named in re.findall(r'pip install[^\n`]*"\.\[([\w,]+)\]"', page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= set(EXTRAS), page


def test_the_environment_that_is_left_is_named() -> None:
    assert ". .venv/bin/activate" in commands()
    assert "activate" in (PROJECT / "Makefile").read_text(encoding="utf-8")


def test_every_other_command_runs(clone: Path, kept_traces_of_processes: dict[str, str]) -> None:
    """With the output that the README shows, where it shows one. `make demo` traces for itself."""
    others = [command for command in commands() if not command.startswith(("make", "pip", ". "))]
    assert len(others) >= 8
    answered = []
    for command in others:
        result = run(command, clone, **kept_traces_of_processes)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        if "generate" in command and "Question" in command:
            answered.append(result.stdout.rstrip("\n"))
    answer, of_example = (output.rstrip("\n") for output in blocks("text"))
    assert answer.endswith("#### 54"), "9 * 6"
    assert answered[0] == answer
    assert answered[1].endswith("#### 54"), "with --drafts and 4 branches"
    results = (clone / "out" / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["stop_reason"] for line in results] == ["eos", "eos"]
    assert (clone / "out" / "quality.png").read_bytes().startswith(b"\x89PNG")
    (example,) = blocks("python")
    result = subprocess.run([sys.executable, "-c", example], cwd=clone, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert of_example.endswith("#### 15"), "4 * 3 + 3"
    assert result.stdout.rstrip("\n") == of_example


def test_the_embedded_model_is_called_a_toy() -> None:
    assert re.search(r"toy of 2\.4 million parameters.*often wrong", README, re.DOTALL)


def test_every_command_for_batches_runs(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bundle").symlink_to(tiny_bundle)
    for command in commands(BATCHES):
        result = run(command, tmp_path)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    results = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [(line.get("id"), line["line"]) for line in results] == [("sum", 1), (None, 2)]
