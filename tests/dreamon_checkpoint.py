"""A checkpoint with DreamOn's expand token, made of the embedded one.

The recorded loops of tests/reference/infill/dreamon_*.jsonl.gz decoded the same checkpoint. Two rows of its head are
scaled copies of other rows, so that the expand token and the end of text are probable in holes.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from lopa.tiny import CHECKPOINT

EXPAND_ID, EXPAND_TEXT = 980, "<|expand|>"
HEAD_ROWS = ((980, 223, 1.03), (0, 16, 1.03))
"""Rows of the head: token, token whose row is copied, factor."""


def checkpoint_with_expand(destination: Path, head_rows: Sequence[tuple[int, int, float]] = HEAD_ROWS) -> Path:
    """Write the checkpoint to `destination` and return it."""
    shutil.copytree(CHECKPOINT, destination)
    weights = load_file(destination / "model.safetensors")
    head = weights["lm_head.weight"]
    for token, source, factor in head_rows:
        head[token] = head[source] * np.float32(factor)
    save_file(weights, destination / "model.safetensors")
    path = destination / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"][EXPAND_TEXT] = EXPAND_ID
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": EXPAND_ID, "content": EXPAND_TEXT})
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return destination
