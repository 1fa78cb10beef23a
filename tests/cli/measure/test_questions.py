"""lopa-export bench questions: files for bench quality, and bad usage."""

import json
from pathlib import Path

import pytest
from tests.cli.command import lopa_export

from lopa.bench.data_sets import DATA_SETS
from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.cli.measure.questions import command

RECORD = {"question": "Two and three?", "answer": "#### 5"}


def test_data_with_examples(tmp_path: Path) -> None:
    data, path = tmp_path / "test.jsonl", tmp_path / "out.jsonl"
    data.write_text(json.dumps(RECORD) + "\n")
    arguments = ("bench", "questions", "gsm8k", data, "-o", path, "--shots-from", data, "--max-new-tokens", 20)
    assert lopa_export(*arguments, "--shots", 1).returncode == 0
    (item,) = eval_set_from_jsonl(path)
    assert (item.prompt.count("Two and three?"), item.max_new_tokens) == (2, 20)
    before = path.read_text()
    done = lopa_export(*arguments)
    assert done.returncode == 2
    assert "test.jsonl has 1 records" in done.stderr
    data.write_text('{"question": "?"}\n')
    done = lopa_export(*arguments)
    assert done.returncode == 2
    assert "test.jsonl line 1: Object missing required field `answer`" in done.stderr
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gsm8k",), "missing argument 'DATA'"),
        (("mbpp", "data.jsonl", "--shots", "3"), "--shots needs --shots-from"),
        (("humaneval", "data.jsonl", "--chat", "--shots-from", "data.jsonl"), "omit --shots-from"),
        (("sudoku", "data.jsonl"), "sudoku"),
        (("gsm8k", "missing.jsonl"), "missing.jsonl"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = lopa_export("bench", "questions", *arguments, "-o", tmp_path / "out.jsonl")
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_help_names_all() -> None:
    text = command.help or ""
    assert all(name in text for name in DATA_SETS)
