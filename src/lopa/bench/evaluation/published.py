"""GSM8K, HumanEval and MBPP as the published evaluations of LoPA ask them, from the data sets' own files of JSON lines.

Prompts, shots and stops are those of lm-eval's tasks gsm8k, humaneval and mbpp, which the published scripts run; `chat`
is what they do with --apply_chat_template --fewshot_as_multiturn, and of humaneval the prompt of the DiffuCoder
scripts. What is known of them and what is not: docs/how-to/measure.md. Pure but for reading files; runs no code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.bench.eval_set import objects_from_jsonl
from lopa.bench.scoring import number_from_text
from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError

MAX_NEW_TOKENS = 512
"""Of all published runs."""
Record = Mapping[str, Any]
Line = dict[str, Any]
_REMEDY = "give the data set's own file, unpacked, or correct the line"


@dataclass(frozen=True)
class DataSet:
    """How a data set is read, asked and scored."""

    fields: Mapping[str, tuple[type, ...]]
    """Those that a line has to have, with what they may be."""
    asked: Callable[[Record], str]
    answered: Callable[[Record], str]
    """What an example shows as its answer."""
    between: str
    """Question and answer of an example."""
    after: str
    """An example, in front of what follows."""
    stop: tuple[str, ...]
    shots: int
    """Published."""
    task_id: Callable[[Record], str] | None = None
    """For a harness that runs the answers; None: they are scored here, by the number behind ####."""
    chat: Callable[[str], Line] | None = None
    """A chat that is more than the question."""


def _mbpp_question(record: Record) -> str:
    tests = "\n".join(record["test_list"])
    words = record.get("text", record.get("prompt"))
    return (
        f"You are an expert Python programmer, and here is your task: {words} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )


def _diffucoder_chat(prompt: str) -> Line:
    system = "You are an intelligent programming assistant to produce Python algorithmic solutions"
    user = f"Can you complete the following Python function?\n```python\n{prompt.strip()}\n```\n"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"messages": messages, "begun": "```python\n", "stop": ["```"]}


DATA_SETS: Mapping[str, DataSet] = {
    "gsm8k": DataSet(
        fields={"question": (str,), "answer": (str,)},
        asked=lambda record: f"Question: {record['question']}\nAnswer:",
        answered=lambda record: str(record["answer"]),
        between=" ",
        after="\n\n",
        stop=("Question:", "</s>", "<|im_end|>"),
        shots=4,
    ),
    "humaneval": DataSet(
        fields={"task_id": (str,), "prompt": (str,), "entry_point": (str,), "canonical_solution": (str,)},
        asked=lambda record: str(record["prompt"]),
        answered=lambda record: str(record["canonical_solution"]),
        between="",
        after="\n\n",
        stop=("\nclass", "\ndef", "\n#", "\nif", "\nprint"),
        shots=0,
        task_id=lambda record: str(record["task_id"]),
        chat=_diffucoder_chat,
    ),
    "mbpp": DataSet(
        fields={"task_id": (int, str), "text|prompt": (str,), "code": (str,), "test_list": (list,)},
        asked=_mbpp_question,
        answered=lambda record: f"{record['code']}\n[DONE]",
        between="",
        after="\n\n",
        stop=("[DONE]",),
        shots=3,
        task_id=lambda record: f"Mbpp/{str(record['task_id']).removeprefix('Mbpp/')}",
    ),
}


def lines_of_data_set(
    name: str, records: Sequence[Record], shots: Sequence[Record], *, chat: bool, last_number: bool
) -> list[Line]:
    """A line of an evaluation set (lopa.bench.eval_set) for each record, `shots` in front of all as examples.

    With `last_number` the last number of an answer counts, wherever it stands, in place of the one behind ####.
    """
    data = DATA_SETS[name]
    return [_line(name, data, record, shots, chat=chat) | _scored(data, record, last_number) for record in records]


def _line(name: str, data: DataSet, record: Record, shots: Sequence[Record], *, chat: bool) -> Line:
    line: Line = {"answer": data.answered(record), "kind": name, "stop": list(data.stop)}
    line["max_new_tokens"] = MAX_NEW_TOKENS
    if chat and data.chat is not None:
        return line | data.chat(data.asked(record))
    if chat:
        turns = [(each, data.answered(each)) for each in shots]
        told = [(("user", data.asked(each)), ("assistant", answer)) for each, answer in turns]
        pairs = [*(message for turn in told for message in turn), ("user", data.asked(record))]
        return line | {"messages": [{"role": role, "content": content} for role, content in pairs]}
    examples = "".join(data.asked(each) + data.between + data.answered(each) + data.after for each in shots)
    return line | {"prompt": examples + data.asked(record)}


def _scored(data: DataSet, record: Record, last_number: bool) -> Line:
    if data.task_id is not None:
        return {"task_id": data.task_id(record)}
    return {"scoring": "last_number" if last_number else "number"}


def records_from_jsonl(name: str, path: Path) -> list[Record]:
    """The records of a data set's file. Raises BadInputError, naming line and field, for one that lacks something."""
    expected = f"a record of {name}: an object with {', '.join(DATA_SETS[name].fields)}"
    objects = objects_from_jsonl(path, expected=expected, remedy=_REMEDY)
    return [_checked_record(name, value, source, expected) for source, value in objects]


def _checked_record(name: str, value: Record, source: str, expected: str) -> Record:
    for field, kinds in DATA_SETS[name].fields.items():
        found = next((each for each in field.split("|") if each in value), None)
        if found is None:
            raise BadInputError(f"{source} has no {field}", expected=expected, remedy=_REMEDY)
        if not isinstance(value[found], kinds) or isinstance(value[found], bool):
            raise BadInputError(f"{source} has {found} {shown(value[found])}", expected=expected, remedy=_REMEDY)
    _check_values(name, value, source, expected)
    return value


def _check_values(name: str, value: Record, source: str, expected: str) -> None:
    """What the types do not say."""
    if name == "gsm8k" and number_from_text(value["answer"]) is None:
        raise BadInputError(f"{source} has an answer without a number behind ####", expected=expected, remedy=_REMEDY)
    tests = value.get("test_list", ["one"])
    if not tests or not all(isinstance(test, str) for test in tests):
        raise BadInputError(f"{source} has test_list {shown(tests)}", expected="texts, at least one", remedy=_REMEDY)
