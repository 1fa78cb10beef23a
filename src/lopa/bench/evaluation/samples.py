"""Sample files for external harnesses such as HumanEval and EvalPlus, one for each configuration.

Nothing here runs a model's output. The harnesses do, in a sandbox that the user chooses.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lopa.bench.eval_set import EvalItem
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
