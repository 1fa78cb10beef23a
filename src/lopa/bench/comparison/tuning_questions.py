"""Questions of a tuning run: scored answers, or prompts whose answers are compared with slow decoding."""

from dataclasses import replace
from pathlib import Path

from lopa.bench.comparison.ladder import MIN_QUESTIONS
from lopa.bench.eval_set import EvalItem, eval_set_from_jsonl, item_from_object, objects_from_jsonl
from lopa.runtime.errors import BadInputError

REFERENCE_KIND = "text"
_PROMPTS = '{"prompt": text} or {"messages": chat}'


def scored_questions(path: Path, *, limit: int | None) -> tuple[EvalItem, ...]:
    """Return the questions of an evaluation set that have a scoring, at most `limit`.

    Raises BadInputError for an invalid file and for fewer than MIN_QUESTIONS.
    """
    items = tuple(item for item in eval_set_from_jsonl(path, chats=True) if item.verdict)[:limit]
    _check_count(path, len(items), "questions with a scoring", "add questions of kind math or with the field scoring, ")
    return items


def reference_prompts(path: Path, *, limit: int | None) -> tuple[EvalItem, ...]:
    """Return the prompts of a file of JSON lines, at most `limit`.

    Raises BadInputError for an invalid file and for fewer than MIN_QUESTIONS.
    """
    items: list[EvalItem] = []
    for source, value in objects_from_jsonl(path, expected=_PROMPTS, remedy="check the path, or correct the line"):
        item = item_from_object({"answer": "", **value, "kind": REFERENCE_KIND}, source=source, chats=True)
        items.append(replace(item, task_id=str(len(items))))  # with a task_id, outcomes keep the text
    _check_count(path, len(items[:limit]), "prompts", "add prompts, ")
    return tuple(items[:limit])


def _check_count(path: Path, count: int, what: str, remedy: str) -> None:
    if count < MIN_QUESTIONS:
        raise BadInputError(
            f"{path} has {count} {what}",
            expected=f"at least {MIN_QUESTIONS}, since a few questions cannot show that a score is not lower",
            remedy=f"{remedy}or use --reference-text with prompts only"
            if "scoring" in what
            else f"{remedy}or raise --limit",
        )
