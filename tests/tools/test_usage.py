"""Every program of tools/ starts from the root of the repository, as its docstring documents."""

import ast
import importlib
import re
from pathlib import Path

import click
import pytest
from tools.measure import MEASUREMENTS

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
    path
    for path in ROOT.glob("tools/**/*.py")
    if path.name == "__main__.py" or 'if __name__ == "__main__"' in path.read_text()
)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")


def start_of(path: Path) -> str:
    return f"python -m {name_of(path)}"


def current_text(path: Path) -> str:
    """Return a file without shell blocks that run a program of another commit."""
    return re.sub(r"^git worktree add [^`]+", "", path.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("path", PROGRAMS, ids=name_of)
def test_programs_document_their_usage(path: Path) -> None:
    text = path.read_text()
    assert re.search(rf"{re.escape(start_of(path))}\b", ast.get_docstring(ast.parse(text)) or "")
    assert "sys.path.insert(0, str(Path(__file__)" not in text


def test_documented_programs_exist() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("tools/**/*.py")]
    starts = re.compile(r"python (?:-m tools\.[\w.]*\w|tools/[\w/]+\.py)")
    documented = {start for page in pages for start in starts.findall(current_text(page))}
    assert documented == {start_of(path) for path in PROGRAMS}


def test_documented_measurements_are_registered() -> None:
    pages = [ROOT / "Makefile", *ROOT.glob("docs/**/*.md"), *ROOT.glob("tools/**/*.py")]
    named = {name for page in pages for name in re.findall(r"-m tools\.measure ([a-z]+)", current_text(page))}
    own_programs = {"fuzz", "gpu"}
    assert named == MEASUREMENTS.keys() - own_programs
    for module, _ in MEASUREMENTS.values():
        assert isinstance(importlib.import_module(module).main, click.Command)
