"""Tokens per second of many requests at once, and what prompts used again save.

Usage: python -m tools.reports.engine BUNDLE [--branches N] [--limit N] [--rounds N] [--threads N]

Both tables are medians over rounds; in every round each variant decodes the same prompts once, in turns. Processor time
is that of the whole process: on a machine that others use it says more than wall time.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.table import Table, show_table
from lopa.runtime.contract import Statistics, WindowBatch
from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.pool import RequestPool
from lopa.runtime.requests.prompt_store import PROMPT_ROWS, PromptStore
from lopa.runtime.sessions.session import Session
from lopa.tiny import EVAL

_TOGETHER = (1, 2, 4, 8)
_PADDINGS = (0.0, 0.25, 0.5, 1.0, float("inf"))
_ANSWERS_PER_PROMPT = 4


@dataclass(frozen=True)
class Run:
    """One decode of all prompts."""

    tokens: int
    wall: float
    processor: float
    forwards: int
    rows: int
    """Window rows computed, padding included."""


class Counted:
    """A session that counts forwards and window rows."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.forwards = self.rows = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def forward(self, batch: WindowBatch) -> Statistics:
        """As the session's."""
        self.forwards += 1
        self.rows += batch.input_ids.size
        return self._session.forward(batch)


def decoded(
    decoder: Decoder, prompts: Sequence[str], config: GenerationConfig, together: int, padding: float, prompt_rows: int
) -> Run:
    """Decode `prompts`, `together` at once."""
    session = Counted(decoder.session)
    manifest = decoder.bundle.manifest
    store = PromptStore(prompt_rows)
    pool = RequestPool(session, manifest, decoder.tokenizer, store, max_padding=padding)  # type: ignore[arg-type]
    jobs = [decoder._job(prompt, config) for prompt in prompts]
    waiting = list(reversed(jobs))
    wall, processor = time.perf_counter(), time.process_time()
    while waiting or len(pool):
        while waiting and len(pool) < together:
            pool.add(waiting.pop())
        pool.step()
    tokens = sum(job.handle.result(0).tokens for job in jobs)
    return Run(tokens, time.perf_counter() - wall, time.process_time() - processor, session.forwards, session.rows)


def row_of(name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    """A line of the table: medians."""
    tokens = runs[0].tokens
    wall, processor = (statistics.median(getattr(run, part) for run in runs) for part in ("wall", "processor"))
    return (name, f"{tokens / wall:.0f}", f"{tokens / processor:.0f}", str(runs[0].forwards), str(runs[0].rows))


def _share(padding: float) -> str:
    return "any" if padding == float("inf") else f"{padding:.0%}"


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--branches", default=4, show_default=True)
@click.option("--limit", default=12, show_default=True, help="Prompts of each kind.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--threads", default=1, show_default=True)
def main(bundle: Path, branches: int, limit: int, rounds: int, threads: int) -> None:
    """Print both tables."""
    prompts = [item.prompt for item in eval_set_from_jsonl(EVAL, limit=limit)]
    shots = ["\n\n".join(prompts[i:] + prompts[:i]) for i in range(0, len(prompts), 4)]
    again = [prompt for prompt in shots for _ in range(_ANSWERS_PER_PROMPT)]
    columns = ("tokens/s", "tokens/s of processor time", "forwards", "window rows")
    with Decoder.open(bundle, threads=threads) as decoder:
        config = decoder.config(branches=branches)
        short = decoder.config(branches=branches, window="block_causal", max_new_tokens=32)
        mixes = [(together, padding) for together in _TOGETHER for padding in (_PADDINGS if together > 1 else (0.0,))]
        decoded(decoder, prompts[:2], config, 2, 0.0, 0)  # memory that all others find ready
        ids = [len(decoder.tokenizer.encode(prompt, add_bos=True)) for prompt in shots]
        many: dict[tuple[int, float], list[Run]] = {mix: [] for mix in mixes}
        reuse: dict[int, list[Run]] = {0: [], PROMPT_ROWS: []}
        for _ in range(rounds):
            for mix, runs in many.items():
                runs.append(decoded(decoder, prompts, config, *mix, 0))
            for prompt_rows, runs in reuse.items():
                runs.append(decoded(decoder, again, short, 1, 0.0, prompt_rows))
    show_table(
        Table(
            f"{len(prompts)} prompts, {branches} branches, {threads} thread(s), median of {rounds}",
            ("requests at once, most padding", *columns),
            tuple(row_of(f"{together}, {_share(padding)}", runs) for (together, padding), runs in many.items()),
        )
    )
    title = f"{len(again)} requests, {_ANSWERS_PER_PROMPT} for each prompt of {min(ids)} to {max(ids)} ids"
    show_table(
        Table(
            f"{title}, block_causal, 32 new tokens, one at a time",
            ("prompts", *columns),
            tuple(row_of("used again" if rows else "computed every time", runs) for rows, runs in reuse.items()),
        )
    )


if __name__ == "__main__":
    main()
