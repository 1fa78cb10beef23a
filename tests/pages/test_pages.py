"""Every command, Python block, curl and JavaScript block of README and docs runs, and prints what the page shows."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.pages.page_blocks import blocks_of
from tests.pages.page_reader import PageReader
from tests.python_path import python_path

from lopa.bench.comparison.ladder import MIN_QUESTIONS
from lopa.tiny import ADAPTER, CHECKPOINT, EVAL

PROJECT = Path(__file__).resolve().parents[2]
PAGES = {
    str(path.relative_to(PROJECT)): path.read_text(encoding="utf-8")
    for path in (PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md")))
}
SAMPLE = ("README.md", "docs/how-to/serve.md")
"""Pages that `make test` runs too."""


@pytest.fixture
def folder(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Return a checkout with the README's bundle and with what placeholders of inputs stand for."""
    for path in PROJECT.iterdir():
        if path.name != "out" and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    bundle = shutil.copytree(tiny_bundle, tmp_path / "out" / "bundle")
    for name, target in (("BUNDLE", bundle), ("CHECKPOINT", CHECKPOINT), ("ADAPTER", ADAPTER)):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "node_modules").mkdir()  # in place of what `npm install` makes
    (tmp_path / "node_modules" / "lopa-web").symlink_to(PROJECT / "web")
    questions = [json.loads(line) for line in EVAL.read_text(encoding="utf-8").splitlines()[:MIN_QUESTIONS]]
    short = [json.dumps({**question, "max_new_tokens": 8}) for question in questions]
    (tmp_path / "EVAL.jsonl").write_text("\n".join(short), encoding="utf-8")
    (tmp_path / "in.jsonl").write_text(
        '{"prompt": "Question: Sara has 4 candies. How many candies are there? Answer:"}\n'
    )
    return tmp_path


def parameters() -> list[object]:
    runs = [name for name, text in PAGES.items() if any(block.kept_from is None for block in blocks_of(text))]
    return [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.docs) for name in runs]


@pytest.mark.parametrize("name", parameters())
def test_every_block_runs(
    name: str, folder: Path, kept_traces_of_processes: dict[str, str], request: pytest.FixtureRequest
) -> None:
    if "pip install -e examples/careful_strategy" in PAGES[name]:
        remove = [sys.executable, "-m", "pip", "uninstall", "-qy", "lopa-careful-strategy"]
        request.addfinalizer(lambda: subprocess.run(remove, check=True))
    if name == "README.md":
        shutil.rmtree(folder / "out" / "bundle")  # it makes this bundle
    if "npm pack" in PAGES[name] and not (PROJECT / "web" / "node_modules" / "ready").is_file():
        pytest.skip("needs npm packages: make test-web")
    paths = python_path(PROJECT / "examples" / "agreement_strategy", kept_traces_of_processes["PYTHONPATH"])
    with PageReader(folder, {**kept_traces_of_processes, "PYTHONPATH": paths}) as reader:
        for block in blocks_of(PAGES[name]):
            if block.kept_from is not None:
                continue
            if " -o BUNDLE" in block.code:
                (folder / "BUNDLE").unlink()
            try:
                output = reader.output_of(block)
            except AssertionError as error:
                raise AssertionError(f"{name}:{block.line}: {error}\n{block.code}") from None
            if block.shown is not None:
                printed = output.splitlines()[-len(block.shown.splitlines()) :]  # the last command's
                assert printed == block.shown.splitlines(), f"{name}:{block.line}"


def test_blocks_that_do_not_run_are_counted() -> None:
    """Change these numbers together with the comment before a block, which says what it needs."""
    found = Counter(block.kept_from or "run" for text in PAGES.values() for block in blocks_of(text))
    assert found == {"run": 72, "network": 18, "device": 9, "program": 20, "hours": 11, "commit": 14}
