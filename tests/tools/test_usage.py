"""Every program of tools/ is started in one way, from the root of the repository, and its text says so."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(path for path in ROOT.glob("tools/**/*.py") if "__main__" in path.name + path.read_text())


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")


def start_of(path: Path) -> str:
    return f"python -m {name_of(path)}"


@pytest.mark.parametrize("path", PROGRAMS, ids=name_of)
def test_a_program_says_how_it_is_started(path: Path) -> None:
    text = path.read_text()
    assert re.search(rf"{re.escape(start_of(path))}\b", ast.get_docstring(ast.parse(text)) or "")
    assert "sys.path.insert(0, str(Path(__file__)" not in text


def test_the_programs_that_pages_name_exist() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("tools/**/*.py")]
    starts = re.compile(r"python (?:-m tools\.[\w.]*\w|tools/[\w/]+\.py)")
    said = {start for page in pages for start in starts.findall(page.read_text())}
    assert said == {start_of(path) for path in PROGRAMS}


def test_one_starts_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "out"
    words = shlex.split(f"-m tools.checkpoint.make --like dream-7b {path} --seed -1")
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "tools.checkpoint.make" in done.stderr
    assert not path.exists()
