"""Evaluation sets are read strictly, and scores match those recorded with the published implementation's texts."""

import gzip
import json
from pathlib import Path

import pytest

from lopa.bench.eval_set import SCORED_KIND, eval_set_from_jsonl, is_correct
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


def test_an_answer_without_a_number_is_wrong() -> None:
    assert not is_correct("#### none", "#### none")
    assert not is_correct("#### 80", "#### 8")
    assert is_correct("#### 8.0", " 3 + 5\n#### 8")


def test_the_embedded_set_and_its_limit() -> None:
    whole, few = eval_set_from_jsonl(EVAL), eval_set_from_jsonl(EVAL, limit=3)
    assert [sum(item.kind == kind for item in whole) for kind in ("math", "code")] == [200, 100]
    assert [item.kind for item in few] == ["math"] * 3 + ["code"] * 3
    assert few[:3] == whole[:3]
    assert few[0].prompt.startswith("Question:")


GOOD = '{"prompt": "p", "answer": "#### 1", "kind": "math"}'


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{not json", "JSON is malformed"),
        ('{"prompt": ' + "[" * 100_000, "nested too deeply"),
        (r'{"prompt": "\ud800", "answer": "a", "kind": "code"}', "line 3: "),
        ('{"prompt": "p", "kind": "code"}', "required field `answer`"),
        ('{"answer": "a", "kind": "code"}', "required field `prompt`"),
        ('{"prompt": "p", "answer": "a"}', "required field `kind`"),
        ('{"prompt": 5, "answer": "a", "kind": "code"}', "`$.prompt`, where it has 5"),
        ('{"prompt": "p", "answer": "#### many", "kind": "math"}', "no number"),
        ('{"prompt": "p", "answer": "many", "kind": "x", "scoring": "last_number"}', "no number"),
        ('{"prompt": "p", "answer": "a", "kind": "x", "scoring": "best"}', "`$.scoring`, where it has 'best'"),
        ('{"prompt": "p", "answer": "a", "kind": "x", "scoring": ["text"]}', "`$.scoring`"),
        ('{"prompt": "p", "answer": "a", "kind": "x", "answers": []}', "`$.answers`"),
        ('{"prompt": "p", "answer": "a", "kind": "x", "stop": "."}', "`$.stop`, where it has '.'"),
        (
            '{"prompt": "p", "answer": "a", "kind": "x", "max_new_tokens": true}',
            "`$.max_new_tokens`, where",
        ),
        ('{"prompt": "p", "answer": "a", "kind": "x", "task_id": 7}', "`$.task_id`, where it has 7"),
        ('{"messages": [{"role": "user", "content": "p"}], "answer": "a", "kind": "x"}', "a chat"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, line: str, named: str) -> None:
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


CHAT = '{"messages": [{"role": "user", "content": "p"}], "answer": "a", "kind": "x"%s}\n'


def test_chats_are_read_if_allowed(tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_text(CHAT % "")
    (item,) = eval_set_from_jsonl(path, chats=True)
    assert (item.prompt, item.messages) == ("", ({"role": "user", "content": "p"},))
    for more, named in [(', "prompt": "p"', "a prompt and messages"), (', "messages": []', "`$.messages`")]:
        path.write_text(CHAT % more)
        with pytest.raises(BadInputError, match="line 1") as caught:
            eval_set_from_jsonl(path, chats=True)
        assert named in caught.value.received
