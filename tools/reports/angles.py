"""Compare a bundle's forwards at large positions with the float32 reference.

Usage: python -m tools.measure angles BUNDLE [BUNDLE ...] [--device NAME] [--dialect NAME] [--start N]

Windows hold text of the embedded test set, with half of its tokens masked. Positions are data for a graph, so they may
exceed the positions that the model was trained for.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from lopa.bench.table import Table
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Dialect
from lopa.runtime.contract import Int64, Statistics, WindowBatch
from lopa.runtime.contract.stored_floats import float32_from_stored
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.tiny import EVAL
from tools.report import show_report

PREFIX, WINDOW = 64, 128
"""Committed rows and rows of the window of each forward."""
STARTS = (0, 300, 2000, 8000, 30000)
"""Position of the first committed row."""


class Deviation(NamedTuple):
    """Deviation of one forward from the reference."""

    rows: float
    """Maximum absolute error of new keys and values."""
    logprobs: float
    """Maximum absolute error of log-probabilities, in nats."""
    different: int
    """Number of the WINDOW sampled positions with another best token."""


class Answer(NamedTuple):
    """Results of one forward."""

    statistics: Statistics
    rows: list[np.ndarray]


@click.command()
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--device", "devices", multiple=True, default=("cpu",), show_default=True, help="Device. Repeatable.")
@click.option("--dialect", type=click.Choice(["standard", "portable"]), help="Graph to run, if a bundle has two.")
@click.option("--start", "starts", multiple=True, type=int, default=STARTS, show_default=True, help="Repeatable.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for angles.md and angles.json.")
def main(
    bundles: Sequence[Path], devices: Sequence[str], dialect: Dialect | None, starts: Sequence[int], output: Path | None
) -> None:
    """Compare forwards of BUNDLES on devices with numpy at large positions."""
    opened = [Bundle.open(path) for path in bundles]
    chosen = [bundle if dialect is None else bundle.with_dialect(dialect) for bundle in opened]
    rows = [
        (bundle, device, start, deviation)
        for bundle in chosen
        for device in devices
        for start, deviation in zip(starts, deviations(bundle, device, starts), strict=True)
    ]
    table = Table(
        "Deviation from numpy",
        ("graph", "type", "angles", "device", "positions", "rows", "log-probabilities", f"other best of {WINDOW}"),
        tuple(
            (
                bundle.manifest.dialect,
                bundle.manifest.dtype,
                "in the graph" if bundle.manifest.rotary is None else "inputs",
                device,
                f"{start} to {start + PREFIX + WINDOW - 1}",
                f"{each.rows:.1e}",
                f"{each.logprobs:.1e}",
                str(each.different),
            )
            for bundle, device, start, each in rows
        ),
    )
    record = [(str(bundle.path), bundle.manifest.dialect, *rest) for bundle, *rest in rows]
    show_report([table], output=output, name="angles", record=record)


def deviations(bundle: Bundle, device: str, starts: Sequence[int]) -> list[Deviation]:
    """Return the deviation of `device` from numpy for a prefix and a window from each of `starts`."""
    windows = [batches_of_text(bundle, start) for start in starts]
    with closing(open_session(bundle, "numpy")) as numpy, closing(open_session(bundle, device, threads=1)) as session:
        return [deviation(answer(session, *pair), answer(numpy, *pair)) for pair in windows]


def batches_of_text(bundle: Bundle, start: int) -> tuple[WindowBatch, WindowBatch]:
    """Return the batches of a prefix and of a window after it. The prefix is at positions from `start`."""
    tokenizer = Tokenizer.open(bundle)
    lines = [json.loads(line) for line in EVAL.read_text("utf-8").splitlines()[:20]]
    text = "\n".join(line["prompt"] + line["answer"] for line in lines)
    ids = np.array(tokenizer.encode(text, add_bos=False)[: PREFIX + WINDOW], np.int64)
    ids[PREFIX::2] = bundle.manifest.special_tokens.mask
    positions = start + np.arange(PREFIX + WINDOW)
    return _batch(ids[:PREFIX], positions[:PREFIX]), _batch(ids[PREFIX:], positions[PREFIX:])


def answer(opened: Session, prefix: WindowBatch, window: WindowBatch) -> Answer:
    """Commit the prefix, run the window, and return its results."""
    session = SequentialSession(opened)
    session.forward(prefix)
    session.commit(0, 0, prefix.input_ids.shape[-1])
    statistics = session.forward(window)
    rows = session.read_rows(0, 0, window.input_ids.shape[-1])
    copies = [float32_from_stored(layer).copy() for layer in rows.layers]
    session.free(0)
    return Answer(statistics, copies)


def deviation(found: Answer, expected: Answer) -> Deviation:
    """Return the deviation of one answer from another."""
    other = found.statistics.topk_ids[..., 0] != expected.statistics.topk_ids[..., 0]
    errors = found.statistics.topk_logprobs - expected.statistics.topk_logprobs
    return Deviation(
        rows=max(float(np.abs(a - b).max()) for a, b in zip(found.rows, expected.rows, strict=True)),
        logprobs=float(np.abs(errors).max()),
        different=int(other.sum()),
    )


def _batch(ids: Int64, positions: Int64) -> WindowBatch:
    rows = len(ids)
    return WindowBatch(
        requests=(0,),
        input_ids=ids[None, None],
        position_ids=positions[None, None],
        window_mask=np.ones((1, 1, rows, rows), np.bool_),
        logits_index=np.arange(rows)[None, None],
        temperature=np.ones(1, np.float32),
    )
