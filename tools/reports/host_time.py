"""Time of a decoding step without its forward.

Usage: python -m tools.measure host BUNDLE [--repeats N]

A session that returns random statistics at once stands in for the device. The time is that of the process, so that
other programs disturb it less. The file runs on any commit since f64e9a4, as `python PATH/host_time.py BUNDLE` in a
checkout, and here as `python -m tools.reports.host_time` too.
"""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np

from lopa import Decoder
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import TOP_K, CacheRows, Statistics
from lopa.runtime.text.tokenizer import Tokenizer

_SETTINGS = ((1, 1), (1, 4), (8, 1), (8, 4))
"""Requests at once and branches of each."""


class FreeSession:
    """A session whose forwards cost nothing: `forward` of padded windows, or `start` and `wait` of packed rows."""

    device = "free"
    rows_per_forward = None

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary, self._random = vocabulary, np.random.default_rng(0)
        self._counts: dict[int, int] = {}
        self._known: dict[tuple[int, ...], Statistics] = {}
        self.seconds = 0.0
        """Seconds of process time in forwards, which do not count."""

    def forward(self, batch: Any) -> Statistics:
        """Return the statistics of padded windows."""
        return self._statistics(batch.logits_index.shape)

    def start(self, batch: Any) -> Any:
        """Return a ticket for packed rows."""
        return SimpleNamespace(batch=batch)

    def wait(self, ticket: Any) -> Statistics:
        """Return the statistics of packed rows."""
        return self._statistics(ticket.batch.sampled_rows.shape)

    def _statistics(self, shape: tuple[int, ...]) -> Statistics:
        began = time.process_time()
        if shape not in self._known:
            ids = np.sort(self._random.integers(300, self._vocabulary - 100, (*shape, TOP_K)), -1)
            best = self._random.uniform(0.3, 1.0, (*shape, 1)).astype(np.float32)
            others = [(1 - best) / TOP_K * (1 - number / 10) for number in range(TOP_K - 1)]
            logprobs = np.log(np.concatenate([best, *others], -1))
            self._known[shape] = Statistics(topk_ids=ids, topk_logprobs=logprobs, entropy=(1 - best[..., 0]))
        self.seconds += time.process_time() - began
        return self._known[shape]

    def commit(self, *arguments: Any) -> None:
        """Count rows; the last three arguments are request, branch and count."""
        request, _, count = arguments[-3:]
        self._counts[request] = self._counts.get(request, 0) + count

    def read_rows(self, *_: Any) -> CacheRows:
        """Return no rows."""
        return CacheRows(())

    def keep_rows(self, _: int, __: int, count: int) -> Any:
        """Return nothing but a number of rows."""
        return SimpleNamespace(count=count)

    def free_rows(self) -> None:
        """Return no limit."""

    def shorten(self, request: int, count: int) -> None:
        """Drop rows."""
        self._counts[request] = count

    def prefix_length(self, request: int) -> int:
        """Return the number of rows."""
        return self._counts.get(request, 0)

    def release(self, *_: Any) -> None:
        """Drop nothing."""

    def free(self, request: int) -> None:
        """Drop all rows of a request."""
        self._counts.pop(request, None)

    def close(self) -> None:
        """Close nothing."""


def microseconds_per_step(bundle: Bundle, requests: int, branches: int) -> float:
    """Return the host's microseconds of one step of one request."""
    vocabulary = bundle.manifest.dimensions.vocab_size
    session: Any = FreeSession(vocabulary)
    random = np.random.default_rng(1)
    prompts = [random.integers(300, vocabulary - 100, 100).tolist() for _ in range(2 * requests + 4)]
    decoder = Decoder(bundle, session, Tokenizer.open(bundle), threads=1)
    began = time.process_time()
    results = decoder.iter_generate(
        prompts, max_num_seqs=requests, branches=branches, max_new_tokens=256, stop_at_eos=False
    )
    steps: int = sum(result.steps for result in results)
    seconds: float = time.process_time() - began - session.seconds
    return 1e6 * seconds / steps


@click.command
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--repeats", default=5, show_default=True, help="Measurements of each setting; the least one is shown.")
def main(bundle: Path, repeats: int) -> None:
    """Measure the time of a decoding step without its forward."""
    opened = Bundle.open(bundle)
    for requests, branches in _SETTINGS:
        least = min(microseconds_per_step(opened, requests, branches) for _ in range(repeats))
        click.echo(f"{requests} requests, {branches} branches: {least:.0f} us per step and request")


if __name__ == "__main__":
    main()
