"""lopa-export bench questions: files for bench quality, and bad usage."""

import json
from pathlib import Path

import pytest
from tests.cli.command import lopa_export

from lopa.bench.eval_set import eval_set_from_jsonl

RECORD = {"question": "Two and three?", "answer": "#### 5"}


def test_lines_are_an_evaluation_set(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "shuffle.jsonl"
    done = lopa_export("bench", "questions", "shuffle", "--count", 3, "--length", 6, "--max-new-tokens", 20, "-o", path)
    assert (done.returncode, done.stderr) == (0, "")
    found = eval_set_from_jsonl(path)
    assert [(item.kind, item.answer.count(","), item.max_new_tokens) for item in found] == [("shuffle", 5, 20)] * 3


def test_data_with_examples(tmp_path: Path) -> None:
    data, path = tmp_path / "test.jsonl", tmp_path / "out.jsonl"
    data.write_text(json.dumps(RECORD) + "\n")
    arguments = ("bench", "questions", "gsm8k", data, "-o", path, "--shots-from", data)
    assert lopa_export(*arguments, "--shots", 1).returncode == 0
    (item,) = eval_set_from_jsonl(path)
    assert item.prompt.count("Two and three?") == 2
    before = path.read_text()
    done = lopa_export(*arguments)
    assert done.returncode == 2
    assert "test.jsonl has 1 records" in done.stderr
    data.write_text('{"question": "?"}\n')
    done = lopa_export(*arguments)
    assert done.returncode == 2
    assert "test.jsonl line 1 has no answer" in done.stderr
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("copy", "data.jsonl"), "omit DATA"),
        (("copy", "--shots", "1"), "--shots is not an option of copy: omit it"),
        (("mbpp", "data.jsonl", "--shots", "3"), "--shots needs --shots-from"),
        (("humaneval", "data.jsonl", "--chat", "--shots-from", "data.jsonl"), "omit --shots-from"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = lopa_export("bench", "questions", *arguments, "-o", tmp_path / "out.jsonl")
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
