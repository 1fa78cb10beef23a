"""Answers for harnesses of others: a file of samples for each configuration, as HumanEval's harness and EvalPlus read.

Nothing that a model wrote is run here. Their harnesses do that, in a sandbox that is theirs and yours to choose.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from lopa.bench.eval_set import EvalItem
from lopa.bench.quality.variants import Variant
from lopa.bench.report import check_output
from lopa.runtime.files.output_file import write_whole

_FOLDER = "samples"


class Samples:
    """The answers to prompts that have a task_id, by configuration."""

    def __init__(self, items: Sequence[EvalItem], variants: Sequence[Variant]) -> None:
        """Of `variants` on `items`; no files come of items without a task_id."""
        wanted = any(item.task_id for item in items)
        self._lines: dict[str, list[str]] = {variant.name: [] for variant in variants} if wanted else {}

    def check(self, folder: Path) -> None:
        """Raise BadInputError unless every file can be written below `folder`."""
        for name in self._lines:
            check_output(_file(folder, name))

    def keep(self, variant: Variant, item: EvalItem, text: str | None) -> None:
        """Remember one answer."""
        if item.task_id is not None:
            sample = {"task_id": item.task_id, "completion": text}
            self._lines.setdefault(variant.name, []).append(json.dumps(sample, ensure_ascii=False) + "\n")

    def write(self, folder: Path) -> None:
        """Write the files, each whole or not at all."""
        for name, lines in self._lines.items():
            write_whole(_file(folder, name), "".join(lines).encode())


def _file(folder: Path, name: str) -> Path:
    """A configuration's name may have spaces ("d2f 0.9"), which commands of others would need quoted."""
    return folder / _FOLDER / f"{name.replace(' ', '-')}.jsonl"
