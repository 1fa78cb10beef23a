"""A side that Python can run, in its own process: ours, OpenVINO with our graphs, torch eager, or GenAI's model.

Usage: python -m tools.peers.python_side KIND COMPUTES FOLDER THREADS

KIND is lopa or openvino (with the bundle FOLDER), torch (with the checkpoint FOLDER) or genai (with its model FOLDER).
It replies to the lines of tools/peers/side_process.py. Every side computes the prefix itself, then windows after it.
"""

import os
import sys
import time
from pathlib import Path
from typing import Protocol, TextIO

import click
import numpy as np

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Int64, Statistics, WindowBatch
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import Session, open_session
from tools.cli_errors import exit_on_error

_REQUEST = 0
_OPENVINO_DEVICES = {"f32": "openvino:CPU", "bf16": "openvino:CPU:bf16", "int8": "openvino:CPU:int8"}


class Forwards(Protocol):
    """Forwards of a prefix and of windows after it."""

    def first(self, tokens: Int64) -> None:
        """Run a forward of `tokens` [W] from nothing."""

    def prefix(self, tokens: Int64) -> None:
        """Compute the prefix `tokens` [P] of the following windows."""

    def windows(self, tokens: Int64) -> None:
        """Set the windows `tokens` [B, W]."""

    def run(self) -> None:
        """Run one forward of the windows."""

    def write_answer(self, path: Path) -> str:
        """Write the last forward's answer to `path` and return its kind, logits or statistics."""


@click.command()
@click.argument("kind", type=click.Choice(["lopa", "openvino", "torch", "genai"]))
@click.argument("computes")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("threads", type=int)
def main(kind: str, computes: str, folder: Path, threads: int) -> None:
    """Reply to the lines of standard input on standard output until the input ends."""
    replies = _reply_stream()
    forwards = _open(kind, computes, folder, threads)
    _reply(replies, "open")
    for line in sys.stdin:
        what, _, rest = line.rstrip("\n").partition(" ")
        if what == "reserve":
            _reply(replies, "reserved")
        elif what in ("first", "prefix"):
            count, _, path = rest.partition(" ")
            tokens = _read_tokens(path)[: int(count)]
            began = time.perf_counter()
            (forwards.first if what == "first" else forwards.prefix)(tokens)
            _reply(replies, f"{time.perf_counter() - began:.9f}")
        elif what == "windows":
            branches, window, path = rest.split(" ", 2)
            shape = int(branches), int(window)
            forwards.windows(_read_tokens(path)[-shape[0] * shape[1] :].reshape(shape))
            _reply(replies, "ready")
        elif what == "run":
            began = time.perf_counter()
            forwards.run()
            _reply(replies, f"{time.perf_counter() - began:.9f}")
        elif what == "answer":
            _reply(replies, forwards.write_answer(Path(rest)))
        else:
            raise ValueError(f"received {line!r}, expected reserve, first, prefix, windows, run or answer")


class SessionForwards:
    """Forwards of a session of lopa.runtime, which has statistics of every row."""

    def __init__(self, session: Session) -> None:
        self._session = SequentialSession(session)
        self._start = 0
        self._batch: WindowBatch | None = None
        self.found: Statistics | None = None
        """Statistics of the last run."""

    def first(self, tokens: Int64) -> None:
        """Run a forward of `tokens` [W] from nothing."""
        self._session.forward(windows_of_tokens(tokens[None], start=0, sampled=1))

    def prefix(self, tokens: Int64) -> None:
        """Compute the prefix, with the statistics of one row."""
        self._session.free(_REQUEST)
        self._session.forward(windows_of_tokens(tokens[None], start=0, sampled=1))
        self._session.commit(_REQUEST, 0, len(tokens))
        self._start = len(tokens)

    def windows(self, tokens: Int64) -> None:
        """Set the windows `tokens` [B, W] after the prefix."""
        self._batch = windows_of_tokens(tokens, start=self._start, sampled=tokens.shape[1])

    def run(self) -> None:
        """Run one forward of the windows."""
        assert self._batch is not None, "run before windows"
        self.found = self._session.forward(self._batch)

    def write_answer(self, path: Path) -> str:
        """Write the statistics as npz."""
        assert self.found is not None, "answer before run"
        with path.open("wb") as file:
            np.savez(
                file, ids=self.found.topk_ids[0], logprobs=self.found.topk_logprobs[0], entropy=self.found.entropy[0]
            )
        return "statistics"


def windows_of_tokens(tokens: Int64, *, start: int, sampled: int) -> WindowBatch:
    """Return one request's windows `tokens` [B, W]. Every row sees its whole window. The last `sampled` are sampled."""
    branches, window = tokens.shape
    positions = np.broadcast_to(np.arange(window), (1, branches, window))
    return WindowBatch(
        requests=(_REQUEST,),
        input_ids=tokens[None].copy(),
        position_ids=positions + start,
        window_mask=np.ones((1, branches, window, window), np.bool_),
        logits_index=positions[..., window - sampled :].copy(),
        temperature=np.ones(1, np.float32),
    )


def _open(kind: str, computes: str, folder: Path, threads: int) -> Forwards:
    if kind == "lopa":
        return SessionForwards(open_session(Bundle.open(folder), "cpu", threads=threads))
    if kind == "openvino":
        return SessionForwards(open_session(Bundle.open(folder), _OPENVINO_DEVICES[computes], threads=threads))
    if kind == "genai":
        from tools.peers.genai_model import CausalModel

        return CausalModel(folder, threads)
    return SessionForwards(_torch_session(computes, folder, threads))


def _torch_session(computes: str, folder: Path, threads: int) -> Session:
    """Import torch only here, since that takes seconds."""
    import torch

    from lopa.bench.speed.eager_model import eager_model_from_checkpoint
    from lopa.bench.speed.eager_session import EagerSession

    torch.set_num_threads(threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[computes]
    return EagerSession(eager_model_from_checkpoint(folder, None, dtype=dtype), together=True)


def _read_tokens(path: str) -> Int64:
    return np.fromfile(path, np.int32).astype(np.int64)


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
