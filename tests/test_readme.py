"""Every command and every example of the README runs as it stands."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
BATCHES = (PROJECT / "docs" / "batches.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page: str = README) -> list[str]:
    return [line for block in blocks("sh", page) for line in block.splitlines()]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project's files, in which the README's paths hold."""
    folder = tmp_path_factory.mktemp("readme") / "lopa-export"
    shutil.copytree(PROJECT, folder, symlinks=True, ignore=shutil.ignore_patterns(".*", "out", "*.egg-info", "tests"))
    (folder / "out").mkdir()
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
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
    assert installs == ['pip install ".[export]"']


def test_every_other_command_runs(clone: Path) -> None:
    others = [command for command in commands() if not command.startswith(("make", "pip"))]
    assert len(others) >= 8
    for command in others:
        result = run(command, clone)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    assert (clone / "out" / "answers.jsonl").is_file()
    assert (clone / "out" / "quality.png").read_bytes().startswith(b"\x89PNG")
    for example in blocks("python"):
        result = subprocess.run([sys.executable, "-c", example], cwd=clone, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip()


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (PROJECT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    text = (PROJECT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    for link in links:
        if not link.startswith("https://"):
            assert ((PROJECT / page).parent / link).exists(), f"{page} links to {link}"


def test_every_command_for_batches_runs(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bundle").symlink_to(tiny_bundle)
    for command in commands(BATCHES):
        result = run(command, tmp_path)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    results = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [(line.get("id"), line["line"]) for line in results] == [("sum", 1), (None, 2)]
