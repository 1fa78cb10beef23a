"""GSM8K, HumanEval and MBPP with the prompts of LoPA's published evaluations, from the data sets' JSON-lines files.

The published scripts run lm-eval's tasks gsm8k, humaneval and mbpp. This module has the same prompts, shots and stop
strings. `chat` matches the scripts' options --apply_chat_template --fewshot_as_multiturn. Chats of humaneval use the
DiffuCoder scripts' prompt. docs/how-to/measure.md describes these evaluations. This module only reads files and runs no
code.

Sample files are for external harnesses such as HumanEval and EvalPlus, one for each configuration. Nothing here runs a
model's output. The harnesses do, in a sandbox that the user chooses.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from lopa.bench.eval_set import EvalItem, records_from_jsonl
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_atomically

_FOLDER = "samples"


def sample_file(folder: Path, config: str) -> Path:
    """Return the path of a configuration's samples. Spaces in its name ("d2f 0.9") become hyphens."""
    return folder / _FOLDER / f"{config.replace(' ', '-')}.jsonl"


def write_samples(folder: Path, items: Sequence[EvalItem], texts: Mapping[str, Sequence[str | None]]) -> None:
    """Write the answers to the prompts that have a task_id, in the order of `items`, per configuration."""
    for config, answers in texts.items():
        lines = [
            json.dumps({"task_id": item.task_id, "completion": text}, ensure_ascii=False) + "\n"
            for item, text in zip(items, answers, strict=True)
            if item.task_id is not None
        ]
        write_atomically(sample_file(folder, config), "".join(lines).encode())


Record = Mapping[str, Any]
Line = dict[str, Any]
_REMEDY = "use the data set's original file, unpacked, or correct the line"


class _Gsm8kRecord(TypedDict):
    question: str
    answer: Annotated[str, Meta(pattern=r"####[\s*_`$-]*\.?\d")]


class _HumanEvalRecord(TypedDict):
    task_id: str
    prompt: str
    canonical_solution: str


class _MbppRecord(TypedDict):
    task_id: int | str
    text: NotRequired[str]
    prompt: NotRequired[str]
    """Text in the sanitized version."""
    code: str
    test_list: Annotated[list[str], Meta(min_length=1)]


@dataclass(frozen=True)
class DataSet:
    """Fields, prompts and scoring of a data set."""

    record: type[Any]
    """Type of a record, with the fields that are read."""
    question: Callable[[Record], str]
    answer: Callable[[Record], str]
    """Function that returns the answer to show in a few-shot example."""
    between: str
    """Separator between question and answer of an example."""
    after: str
    """Separator after an example."""
    stop: tuple[str, ...]
    shots: int
    """Number of examples in the published runs."""
    task_id: Callable[[Record], str] | None = None
    """Function that returns the sample name for an external harness. If it is None, answers are scored here by the
    number after ####.
    """
    chat: Callable[[str], Line] | None = None
    """Function that returns the chat fields, or None if the chat has only the question."""


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
        record=_Gsm8kRecord,
        question=lambda record: f"Question: {record['question']}\nAnswer:",
        answer=lambda record: str(record["answer"]),
        between=" ",
        after="\n\n",
        stop=("Question:", "</s>", "<|im_end|>"),
        shots=4,
    ),
    "humaneval": DataSet(
        record=_HumanEvalRecord,
        question=lambda record: str(record["prompt"]),
        answer=lambda record: str(record["canonical_solution"]),
        between="",
        after="\n\n",
        stop=("\nclass", "\ndef", "\n#", "\nif", "\nprint"),
        shots=0,
        task_id=lambda record: str(record["task_id"]),
        chat=_diffucoder_chat,
    ),
    "mbpp": DataSet(
        record=_MbppRecord,
        question=_mbpp_question,
        answer=lambda record: f"{record['code']}\n[DONE]",
        between="",
        after="\n\n",
        stop=("[DONE]",),
        shots=3,
        task_id=lambda record: f"Mbpp/{str(record['task_id']).removeprefix('Mbpp/')}",
    ),
}


def lines_of_data_set(
    name: str,
    records: Sequence[Record],
    shots: Sequence[Record],
    *,
    chat: bool = False,
    last_number: bool = False,
    max_new_tokens: int = 512,
) -> list[Line]:
    """Return a line of an evaluation set (lopa.bench.eval_set) per record, each with `shots` as examples.

    With `last_number` the last number of an answer is scored, in place of the one after ####.
    """
    data = DATA_SETS[name]
    common = {"kind": name, "stop": list(data.stop), "max_new_tokens": max_new_tokens}
    return [common | _line(data, record, shots, chat=chat) | _scored(data, record, last_number) for record in records]


def _line(data: DataSet, record: Record, shots: Sequence[Record], *, chat: bool) -> Line:
    line: Line = {"answer": data.answer(record)}
    if chat and data.chat is not None:
        return line | data.chat(data.question(record))
    if chat:
        turns = [(("user", data.question(each)), ("assistant", data.answer(each))) for each in shots]
        pairs = [*(message for turn in turns for message in turn), ("user", data.question(record))]
        return line | {"messages": [{"role": role, "content": content} for role, content in pairs]}
    examples = "".join(data.question(each) + data.between + data.answer(each) + data.after for each in shots)
    return line | {"prompt": examples + data.question(record)}


def _scored(data: DataSet, record: Record, last_number: bool) -> Line:
    if data.task_id is not None:
        return {"task_id": data.task_id(record)}
    return {"scoring": "last_number" if last_number else "number"}


def records_of_data_set(name: str, path: Path) -> list[Record]:
    """Return the records of a data set's file. Raises BadInputError with line and field for an invalid record."""
    kind = DATA_SETS[name].record
    expected = f"a record of {name}: an object with {', '.join(kind.__annotations__)}"
    found = []
    for source, record in records_from_jsonl(path, kind, expected=expected, remedy=_REMEDY):
        if name == "mbpp" and record.keys().isdisjoint(("text", "prompt")):
            raise BadInputError(f"{source} has neither text nor prompt", expected="one of them", remedy=_REMEDY)
        found.append(record)
    return found
