"""A side that Python can run, in its own process: ours, OpenVINO with our graphs, or torch eager.

Usage: python -m tools.peers.python_side KIND PRECISION FOLDER THREADS

KIND is lopa or openvino (with the bundle FOLDER) or torch (with the checkpoint FOLDER). It replies to the lines of
tools/peers/side_process.py. Every side computes the prefix itself, then windows after it.
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
from tools.cli_errors import exit_on_error

_REQUEST = 0
_TORCH_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@click.command()
@click.argument("kind", type=click.Choice(["lopa", "openvino", "torch"]))
@click.argument("precision")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("threads", type=int)
def main(kind: str, precision: str, folder: Path, threads: int) -> None:
    """Reply to the lines of standard input on standard output until the input ends."""
    replies = _reply_stream()
    session = _open(kind, precision, folder, threads)
    _reply(replies, "open")
    batch: WindowBatch | None = None
    found: Statistics | None = None
    for line in sys.stdin:
        what, *words = line.rstrip("\n").split(" ", 4)
        if what == "prepare":
            prefix, branches, window = map(int, words[:3])
            batch = prepare_windows(
                session, np.fromfile(words[3], np.int32).astype(np.int64), prefix, (branches, window)
            )
            _reply(replies, "prepared")
        elif what == "run" and batch is not None:
            began = time.perf_counter()
            found = session.forward(batch)
            _reply(replies, f"{time.perf_counter() - began:.9f}")
        elif what == "answer" and found is not None:
            with Path(" ".join(words)).open("wb") as file:
                np.savez(file, ids=found.topk_ids[0], logprobs=found.topk_logprobs[0], entropy=found.entropy[0])
            _reply(replies, "statistics")
        else:
            raise ValueError(f"received {line!r}, expected prepare, then run, then answer")


def prepare_windows(session: Session, tokens: Int64, prefix: int, shape: tuple[int, int]) -> WindowBatch:
    """Commit the first `prefix` of `tokens`, and return the windows of the others, of shape (branches, window)."""
    session.release(_REQUEST)
    session.forward(windows_of_tokens(tokens[None, :prefix], start=0))
    session.commit(_REQUEST, 0, prefix)
    return windows_of_tokens(tokens[prefix:].reshape(shape), start=prefix)


def windows_of_tokens(tokens: Int64, *, start: int) -> WindowBatch:
    """Return one request's windows `tokens` [B, W]. Every row sees its whole window and is sampled."""
    branches, window = tokens.shape
    positions = np.broadcast_to(np.arange(window), (1, branches, window))
    return WindowBatch(
        requests=(_REQUEST,),
        input_ids=tokens[None].copy(),
        position_ids=positions + start,
        window_mask=np.ones((1, branches, window, window), np.bool_),
        logits_index=positions.copy(),
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


def _reply_stream() -> TextIO:
    """Return standard output for replies only. Other output goes to standard error from now on."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


def _reply(replies: TextIO, text: str) -> None:
    print(text, file=replies, flush=True)


if __name__ == "__main__":
    with exit_on_error():
        main()
