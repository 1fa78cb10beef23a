"""Prompts of the published data sets, written out; tests/clients compares them with lm-eval's."""

import json
from pathlib import Path
from typing import Any

import pytest

from lopa.bench.data_sets import lines_of_data_set, records_of_data_set
from lopa.bench.eval_set import EvalItem, eval_set_from_jsonl
from lopa.runtime.errors import BadInputError

GSM8K = {"question": "Two and three?", "answer": "2 + 3 = 5\n#### 5"}
HUMANEVAL = {
    "task_id": "HumanEval/7",
    "prompt": 'def f(a):\n    """Doubles."""\n',
    "entry_point": "f",
    "canonical_solution": "    return 2 * a\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}
MBPP = {"task_id": 11, "text": "Write a function.", "code": "def f():\n  pass", "test_list": ["assert 1", "assert 2"]}
RECORDS = {"gsm8k": GSM8K, "humaneval": HUMANEVAL, "mbpp": MBPP}


def item(name: str, tmp_path: Path, *, shots: int = 0, chat: bool = False, last_number: bool = False) -> EvalItem:
    record = RECORDS[name]
    path = tmp_path / "set.jsonl"
    made = lines_of_data_set(name, [record], [record] * shots, chat=chat, last_number=last_number)
    path.write_text("".join(json.dumps(line) + "\n" for line in made))
    (found,) = eval_set_from_jsonl(path, chats=True)
    return found


def test_gsm8k(tmp_path: Path) -> None:
    question = "Question: Two and three?\nAnswer:"
    assert item("gsm8k", tmp_path).prompt == question
    found = item("gsm8k", tmp_path, shots=2)
    assert found.prompt == f"{question} 2 + 3 = 5\n#### 5\n\n" * 2 + question
    assert found.stop == ("Question:", "</s>", "<|im_end|>")
    assert found.max_new_tokens == 512
    assert (found.is_right("so\n#### 5"), found.is_right("#### 6"), found.is_right("It is 5.")) == (True, False, False)
    flexible = item("gsm8k", tmp_path, last_number=True)
    assert (flexible.is_right("It is $5.00."), flexible.is_right("5 of 6")) == (True, False)


def test_gsm8k_as_a_chat(tmp_path: Path) -> None:
    found = item("gsm8k", tmp_path, shots=1, chat=True)
    roles = [(each["role"], each["content"]) for each in found.messages]
    question = ("user", "Question: Two and three?\nAnswer:")
    assert roles == [question, ("assistant", GSM8K["answer"]), question]


def test_humaneval(tmp_path: Path) -> None:
    found = item("humaneval", tmp_path)
    assert found.prompt == HUMANEVAL["prompt"]
    assert (found.task_id, found.verdict) == ("HumanEval/7", None)
    assert "\ndef" in found.stop
    chat = item("humaneval", tmp_path, chat=True)
    assert [each["role"] for each in chat.messages] == ["system", "user"]
    assert chat.messages[1]["content"].endswith('```python\ndef f(a):\n    """Doubles."""\n```\n')
    assert (chat.begun, chat.stop) == ("```python\n", ("```",))


def test_mbpp(tmp_path: Path) -> None:
    found = item("mbpp", tmp_path, shots=1)
    question = (
        "You are an expert Python programmer, and here is your task: Write a function. "
        "Your code should pass these tests:\n\nassert 1\nassert 2\n[BEGIN]\n"
    )
    assert found.prompt == f"{question}def f():\n  pass\n[DONE]\n\n{question}"
    assert (found.task_id, found.stop, found.verdict) == ("Mbpp/11", ("[DONE]",), None)
    sanitized = {**MBPP, "task_id": "Mbpp/11", "prompt": MBPP["text"]}
    del sanitized["text"]
    (line,) = lines_of_data_set("mbpp", [sanitized], [])
    assert (line["prompt"], line["task_id"]) == (question, "Mbpp/11")


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        *(
            (name, {field: None}, field)
            for name, record in RECORDS.items()
            for field in record
            if field not in ("test", "entry_point")
        ),
        ("gsm8k", {"question": 5}, "where it has 5"),
        ("gsm8k", {"answer": "five"}, "answer"),
        ("mbpp", {"test_list": []}, "test_list"),
        ("mbpp", {"test_list": [1]}, "test_list"),
        ("mbpp", {"task_id": True}, "task_id"),
    ],
)
def test_errors_name_file_line_and_field(name: str, change: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    broken = {key: value for key, value in {**RECORDS[name], **change}.items() if value is not None}
    path.write_text(f"{json.dumps(RECORDS[name])}\n\n{json.dumps(broken)}\n")
    with pytest.raises(BadInputError, match=r"data\.jsonl line 3") as caught:
        records_of_data_set(name, path)
    assert named in caught.value.received


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"{not json}", b"[1]"])
def test_unusable_files_are_rejected(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInputError, match=r"data\.jsonl"):
        records_of_data_set("gsm8k", path)
