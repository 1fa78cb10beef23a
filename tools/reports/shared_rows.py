"""Time steps with rows that branches share computed once and as often as there are branches, in turns.

Usage: python -m tools.reports.shared_rows BUNDLE WINDOWS_OF [--threads N] [--branches 4,5,8] [--samples N] [--limit N]

The windows are those of block-causal decodes of the evaluation prompts by the bundle WINDOWS_OF, the embedded model's;
BUNDLE, whose vocabulary is at least as large, computes them over random prefixes, so its weights may be random too. A
step is timed from the windows as they are to the answer of the forward; nothing is decided of it.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.forward.random_inputs import random_prefix_rows
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Int64
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.row_sharing import CheaperForward, always
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.state.batch import Pays, batch_from_windows, rows_of_windows, with_shared_rows
from lopa.runtime.state.windows import Windows
from lopa.tiny import EVAL

_REQUEST = 1


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("windows_of", type=click.Path(path_type=Path))
@click.option("--threads", default=1, show_default=True)
@click.option("--branches", default="4,5,8", show_default=True)
@click.option("--samples", default=8, show_default=True, help="Windows of each number of branches.")
@click.option("--limit", default=6, show_default=True, help="Prompts of each kind that are decoded for them.")
def main(bundle: Path, windows_of: Path, threads: int, branches: str, samples: int, limit: int) -> None:
    """Print a line for each number of branches."""
    rng = np.random.default_rng(0)
    opened = Bundle.open(bundle)
    session = open_session(opened, "cpu", threads=threads)
    chosen = CheaperForward(opened.manifest, None)
    click.echo("| branches | rows | wanted | steps/s: apart | once | ratio (quartiles) | chosen | ratio | same best |")
    click.echo("|---" * 9 + "|")
    for count in map(int, branches.split(",")):
        found = _windows_of_decodes(windows_of, count, limit)
        some = [found[number] for number in rng.choice(len(found), min(samples, len(found)), replace=False)]
        click.echo(_line(session, opened, some, chosen, rng))
    session.close()


def _windows_of_decodes(bundle: Path, branches: int, limit: int) -> list[Windows]:
    """Those of all steps with so many branches."""
    steps: list[Step] = []
    with Decoder.open(bundle, threads=1) as decoder:
        config = decoder.config(branches=branches, window="block_causal", max_new_tokens=128, shared_rows=False)
        for item in eval_set_from_jsonl(EVAL, limit=limit):
            for _ in decoder.stream(item.prompt, config, on_step=steps.append):
                pass
    return [step.windows for step in steps if len(step.branches) == branches]


def _line(
    session: Session, bundle: Bundle, some: Sequence[Windows], chosen: CheaperForward, rng: np.random.Generator
) -> str:
    sides: tuple[Pays, ...] = (_never, always)
    seconds: list[list[float]] = []
    wanted: list[tuple[int, int]] = []
    rows: list[tuple[int, int]] = []
    alike: list[float] = []
    pays: list[bool] = []
    for number, windows in enumerate([some[0], *some]):
        session.append_rows(_REQUEST, random_prefix_rows(bundle.manifest, max(1, windows.prefix), rng))
        turns = (0, 1) if number % 2 else (1, 0)
        timed = {side: _timed(session, windows, sides[side]) for side in turns}
        session.release(_REQUEST)
        if not number:
            continue  # it pays for memory that the others find ready
        seconds.append([timed[side][0] for side in (0, 1)])
        shared = with_shared_rows(windows, always).forward_rows
        rows.append((windows.input_ids.size, shared.input_ids.size))
        wanted.append((windows.logits_index.size, shared.logits_index.size))
        asked = _asked(windows)
        alike.append(float((timed[0][1] == timed[1][1])[asked].mean()) if asked.any() else 1.0)
        pays.append(with_shared_rows(windows, chosen).shared is not None)
    apart, once = (np.array(column) for column in zip(*seconds, strict=True))
    mixed = np.where(pays, once, apart)
    low, middle, high = statistics.quantiles(apart / once, n=4)
    row_sums, wanted_sums = np.sum(rows, axis=0), np.sum(wanted, axis=0)
    return (
        f"| {len(some[0].lengths)} | {row_sums[0] / row_sums[1]:.2f} | {wanted_sums[0] / wanted_sums[1]:.2f} "
        f"| {1 / apart.mean():.2f} | {1 / once.mean():.2f} | {apart.sum() / once.sum():.3f} "
        f"({low:.2f}, {middle:.2f}, {high:.2f}) | {sum(pays)} of {len(pays)} | {apart.sum() / mixed.sum():.3f} "
        f"| {np.mean(alike):.4f} |"
    )


def _never(windows: Windows, rows: int, wanted: int) -> bool:  # noqa: ARG001
    return False


def _timed(session: Session, windows: Windows, pays: Callable[[Windows, int, int], bool]) -> tuple[float, Int64]:
    """Seconds of a step, and the best token of every wanted row [B, Q]."""
    began = time.perf_counter()
    given = windows if pays is _never else with_shared_rows(windows, pays)
    answer = session.forward(batch_from_windows([given], [_REQUEST], [1.0]))
    rows = rows_of_windows(answer, 0, given)
    return time.perf_counter() - began, rows.topk_ids[..., 0]


def _asked(windows: Windows) -> np.ndarray:
    """[B, Q]: wanted rows that are no padding and that a row of the window predicts."""
    counts = np.array([windows.kept + len(asked) for asked in windows.asked])
    return (np.arange(windows.wanted.shape[1]) < counts[:, None]) & ~windows.lacking


if __name__ == "__main__":
    main()
