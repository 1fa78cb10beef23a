"""Prompts are read strictly, and scores agree with those recorded beside the published implementation's texts."""

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest

from lopa.bench.eval_set import SCORED_KIND, eval_set_from_jsonl, is_correct, number_from_text
from lopa.runtime.errors import BadInputError
from lopa.tiny import EVAL

TRACES = Path(__file__).resolve().parents[1] / "reference" / "traces"


def test_scores_agree_with_the_recorded_ones() -> None:
    recorded = []
    for path in TRACES.glob("*.gz"):
        with gzip.open(path, "rt") as lines:
            recorded += [each for each in map(json.loads, lines) if each.get("kind") == SCORED_KIND]
    assert {each["correct"] for each in recorded} == {True, False}
    for each in recorded:
        assert is_correct(each["text"], each["answer"]) == each["correct"], each["text"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so it is 8.\n#### 8", 8),
        ("#### 3\nno, wait\n#### 8", 8),
        ("####8.", 8),
        ("#### -1,234.50 dollars", Decimal("-1234.5")),
        ("#### $12", 12),
        ("#### 1,200", 1200),
        ("the answer is 8", None),
        ("#### eight", None),
        ("#### ", None),
        ("####", None),
        ("### 8", None),
        ("#### 8\n####", None),
        ("", None),
    ],
)
def test_the_number_behind_the_last_marker(text: str, number: Decimal | int | None) -> None:
    assert number_from_text(text) == number


def test_no_number_is_never_right() -> None:
    assert not is_correct("#### none", "#### none")
    assert not is_correct("#### 80", "#### 8")
    assert is_correct("#### 8.0", " 3 + 5\n#### 8")


def test_the_shipped_set_and_its_limit() -> None:
    whole, few = eval_set_from_jsonl(EVAL), eval_set_from_jsonl(EVAL, limit=3)
    assert [sum(item.kind == kind for item in whole) for kind in ("math", "code")] == [200, 100]
    assert [item.kind for item in few] == ["math"] * 3 + ["code"] * 3
    assert few[:3] == whole[:3]
    assert few[0].prompt.startswith("Question:")


GOOD = '{"prompt": "p", "answer": "#### 1", "kind": "math"}'


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "no JSON object"),
        ('{"prompt": "p", "kind": "code"}', "has no answer"),
        ('{"answer": "a", "kind": "code"}', "has no prompt"),
        ('{"prompt": "p", "answer": "a"}', "has no kind"),
        ('{"prompt": 5, "answer": "a", "kind": "code"}', "prompt 5"),
        ('{"prompt": "p", "answer": "#### many", "kind": "math"}', "no number"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, named: str) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(BadInputError, match="line 3") as caught:
        eval_set_from_jsonl(path, limit=1)
    assert named in caught.value.received
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", [None, b"\n\n", b"\xff\xfe\x00"])
def test_a_file_without_lines(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "eval.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInputError, match=r"eval\.jsonl"):
        eval_set_from_jsonl(path)
