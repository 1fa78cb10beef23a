"""One side that Python can drive, as a process of its own: ours, OpenVINO on our graphs, torch eager.

Usage: python -m tools.peers.python_side KIND PRECISION FOLDER THREADS

KIND is lopa, openvino (both of the bundle FOLDER) or torch (of the checkpoint FOLDER). Answers the lines that
tools/peers/side_process.py writes: every side computes the prefix itself, then windows behind it.
"""

import os
import sys
import time
from pathlib import Path
from typing import TextIO

import click
import numpy as np
import torch

from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Int64, Statistics, WindowBatch
from lopa.runtime.sessions.session import Session, open_session
from tools.shown_errors import errors_shown

_REQUEST = 0
_TORCH_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@click.command()
@click.argument("kind", type=click.Choice(["lopa", "openvino", "torch"]))
@click.argument("precision")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("threads", type=int)
def main(kind: str, precision: str, folder: Path, threads: int) -> None:
    """Answer lines on standard output until standard input ends."""
    answers = _own_output()
    session = _open(kind, precision, folder, threads)
    _say(answers, "open")
    batch: WindowBatch | None = None
    found: Statistics | None = None
    for line in sys.stdin:
        what, *words = line.rstrip("\n").split(" ", 4)
        if what == "prepare":
            prefix, branches, window = map(int, words[:3])
            batch = prepared(session, np.fromfile(words[3], np.int32).astype(np.int64), prefix, (branches, window))
            _say(answers, "prepared")
        elif what == "run" and batch is not None:
            began = time.perf_counter()
            found = session.forward(batch)
            _say(answers, f"{time.perf_counter() - began:.9f}")
        elif what == "answer" and found is not None:
            with Path(" ".join(words)).open("wb") as file:
                np.savez(file, ids=found.topk_ids[0], logprobs=found.topk_logprobs[0], entropy=found.entropy[0])
            _say(answers, "statistics")
        else:
            raise ValueError(f"received {line!r}, expected prepare, then run, then answer")


def prepared(session: Session, tokens: Int64, prefix: int, shape: tuple[int, int]) -> WindowBatch:
    """Commit the first `prefix` of `tokens`; the windows of the others, of `shape` (branches, window), behind them."""
    session.release(_REQUEST)
    session.forward(windows_of_tokens(tokens[None, :prefix], start=0))
    session.commit(_REQUEST, 0, prefix)
    return windows_of_tokens(tokens[prefix:].reshape(shape), start=prefix)


def windows_of_tokens(tokens: Int64, *, start: int) -> WindowBatch:
    """One request's windows `tokens` [B, W]: every row sees its whole window, and its statistics are wanted."""
    branches, window = tokens.shape
    every = np.broadcast_to(np.arange(window), (1, branches, window))
    return WindowBatch(
        requests=(_REQUEST,),
        input_ids=tokens[None].copy(),
        position_ids=every + start,
        window_mask=np.ones((1, branches, window, window), np.bool_),
        logits_index=every.copy(),
        temperature=np.ones(1, np.float32),
    )


def _open(kind: str, precision: str, folder: Path, threads: int) -> Session:
    if kind == "lopa":
        return open_session(Bundle.open(folder), "cpu", threads=threads)
    if kind == "openvino":
        device = "openvino:CPU:bf16" if precision == "bf16" else "openvino:CPU"
        return open_session(Bundle.open(folder), device, threads=threads)
    torch.set_num_threads(threads)
    model = eager_model_from_checkpoint(folder, None, dtype=_TORCH_TYPES[precision])
    return EagerSession(model, together=True)


def _own_output() -> TextIO:
    """Standard output for the answers alone: what a library prints there goes to standard error from now on."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


def _say(answers: TextIO, text: str) -> None:
    print(text, file=answers, flush=True)


if __name__ == "__main__":
    with errors_shown():
        main()
