"""Compare lopa-web on onnxruntime-node and WebAssembly with Python's CPU provider, with one thread each.

Usage: python -m tools.measure web BUNDLE [--turns N]

`make test-web` installs and builds what this needs. The sides run one after another.
"""

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from lopa.bench.forward.random_inputs import random_prefix_rows, random_window
from lopa.bench.forward.work import ForwardShape
from lopa.bench.table import ms_text, table_from_records
from lopa.runtime import Decoder
from lopa.runtime.errors import MissingBackendError
from tools.report import show_report

WEB = Path(__file__).resolve().parents[2] / "web"
SHAPES = ((1, 64, 256), (4, 64, 256))
"""Branches, window rows and cached rows of the forwards. All window rows are sampled."""
DEVICES = ("cpu", "wasm")
_PROMPT = "Tom has 3 apples. He buys 4 more."


@dataclass(frozen=True)
class Side:
    """Seconds of one side."""

    name: str
    opening: float
    forwards: Sequence[Sequence[float]]
    """Seconds of the forwards of each of SHAPES."""
    answers: Sequence[float]
    """Seconds of equal answers."""
    tokens: int
    """Tokens of an answer."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens of an answer per second, in the median."""
        return self.tokens / statistics.median(self.answers)


def side_of_python(bundle: Path, turns: int) -> Side:
    """Return the seconds of Python's CPU provider."""
    start = time.perf_counter()
    decoder = Decoder.open(bundle, threads=1)
    opening, forwards, answers = time.perf_counter() - start, [], []
    manifest, session = decoder.bundle.manifest, decoder.session
    for branches, window, prefix in SHAPES:
        shape = ForwardShape(branches=branches, window=window, prefix=prefix, wanted=window)
        session.append_rows(0, random_prefix_rows(manifest, prefix, np.random.default_rng(0)))
        batch = random_window(manifest, 0, shape, np.random.default_rng(1))
        session.forward(batch)
        forwards.append([_seconds(partial(session.forward, batch)) for _ in range(turns)])
        session.release(0)
    for turn in range(turns + 1):
        result = decoder.generate(_PROMPT, max_new_tokens=128, stop_at_eos=False)
        answers += [result.seconds] if turn else []
    decoder.close()
    return Side("Python, cpu", opening, forwards, answers, result.tokens)


def side_of_node(bundle: Path, device: str, turns: int) -> Side:
    """Return the seconds of lopa-web on a device. Raises MissingBackendError without node or a build."""
    node = shutil.which("node")
    if node is None or not (WEB / "dist" / "index.js").is_file():
        raise MissingBackendError("no node, or no build of lopa-web", expected="both", remedy="run `make test-web`")
    command = [node, "speed.mjs", str(bundle.resolve()), device, str(turns)]
    done = subprocess.run(
        command, cwd=WEB / "test", input=json.dumps(SHAPES), stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout)
    return Side(f"lopa-web, {device}", found["opening"], found["forwards"], found["answers"], found["tokens"])


def _seconds(task: Callable[[], Any]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


@click.command(help=__doc__)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--turns", default=20, show_default=True, type=click.IntRange(min=1))
def main(bundle: Path, turns: int) -> None:
    """Measure and print."""
    sides = [side_of_python(bundle, turns), *(side_of_node(bundle, device, turns) for device in DEVICES)]
    columns: dict[str, Callable[[Side], str]] = {"side": lambda each: each.name}
    for index, (branches, window, prefix) in enumerate(SHAPES):
        name = f"{branches} x {window} behind {prefix}, ms"
        columns[name] = lambda each, index=index: ms_text(statistics.median(each.forwards[index]))  # type: ignore[misc]
    columns["tokens/s"] = lambda each: f"{each.tokens_per_second:.0f}"
    columns["ms to open"] = lambda each: ms_text(each.opening)
    show_report([table_from_records("Forwards, and an answer of 128 tokens", sides, columns)])
