"""Compare lopa-web in Node and Chromium with Python's CPU provider, with one thread each, and visit a page.

Usage: python -m tools.measure web BUNDLE [--turns N] [--tokens N] [--side SIDE]...

`make test-web` installs and builds what this needs. The sides run one after another. WebGPU runs on Chromium's software
adapter, which is slow: use --side and few turns. The page is that of `lopa-export page`, on its first visit, with as
many threads as the machine has. Its memory is that of all processes of Chromium.
"""

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from lopa.bench.forward.random_inputs import random_prefix_rows, random_window
from lopa.bench.forward.work import ForwardShape
from lopa.bench.table import MISSING, ms_text, table_from_records
from lopa.runtime import Decoder
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.sessions.sequential_session import SequentialSession
from tools.report import show_report
from tools.reports.web_chromium import Visit, times_in_chromium, visit

WEB = Path(__file__).resolve().parents[2] / "web"
SHAPES = ((1, 64, 256), (4, 64, 256))
"""Branches, window rows and cached rows of the forwards. All window rows are sampled."""
SIDES = ("python", "node", "node-wasm", "chromium", "webgpu", "page")
DEFAULT_SIDES = tuple(side for side in SIDES if side != "webgpu")
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


def side_of_python(bundle: Path, tokens: int, turns: int) -> Side:
    """Return the seconds of Python's CPU provider."""
    start = time.perf_counter()
    decoder = Decoder.open(bundle, threads=1)
    opening, forwards, answers = time.perf_counter() - start, [], []
    manifest, session = decoder.bundle.manifest, SequentialSession(decoder.session)
    for branches, window, prefix in SHAPES:
        shape = ForwardShape(branches=branches, window=window, prefix=prefix, wanted=window)
        session.append_rows(0, random_prefix_rows(manifest, prefix, np.random.default_rng(0)))
        batch = random_window(manifest, 0, shape, np.random.default_rng(1))
        session.forward(batch)
        forwards.append([_seconds(partial(session.forward, batch)) for _ in range(turns)])
        session.free(0)
    for turn in range(turns + 1):
        result = decoder.generate(_PROMPT, max_new_tokens=tokens, stop_at_eos=False)
        answers += [result.seconds] if turn else []
    decoder.close()
    return Side("Python, cpu", opening, forwards, answers, result.tokens)


def side_of_node(name: str, device: str, bundle: Path, tokens: int, turns: int) -> Side:
    """Return the seconds of lopa-web on a device. Raises MissingBackendError without node or a build."""
    node = shutil.which("node")
    if node is None or not (WEB / "dist" / "index.js").is_file():
        raise MissingBackendError("no node, or no build of lopa-web", expected="both", remedy="run `make test-web`")
    command = [node, "speed.mjs", str(bundle.resolve()), device, str(turns), str(tokens)]
    done = subprocess.run(
        command, cwd=WEB / "test", input=json.dumps(SHAPES), stdout=subprocess.PIPE, text=True, check=True
    )
    return Side(name, **json.loads(done.stdout))


def side_of_chromium(name: str, device: str, bundle: Path, tokens: int, turns: int) -> Side:
    """Return the seconds of lopa-web in a page. Raises MissingBackendError without Chromium."""
    return Side(name, **times_in_chromium(bundle, device, SHAPES, tokens=tokens, turns=turns))


def _speed_text(speed: float) -> str:
    """Return a speed with three digits, or as a whole number."""
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.3g}"


def _seconds(task: Callable[[], Any]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


MEASURES: Mapping[str, Callable[[Path, int, int], Side]] = {
    "python": side_of_python,
    "node": partial(side_of_node, "lopa-web, onnxruntime-node", "cpu"),
    "node-wasm": partial(side_of_node, "lopa-web, WebAssembly in Node", "wasm"),
    "chromium": partial(side_of_chromium, "lopa-web, WebAssembly in Chromium", "wasm"),
    "webgpu": partial(side_of_chromium, "lopa-web, WebGPU in Chromium on SwiftShader", "webgpu"),
}
"""Function that measures a side, by its name. It takes the bundle, the tokens of an answer and the turns."""


PAGE: Mapping[str, Callable[[Visit], str]] = {
    "MB loaded": lambda each: f"{each.sent / 1e6:.1f}",
    "s to ready": lambda each: f"{each.ready:.2f}",
    "s to first text": lambda each: MISSING if each.first is None else f"{each.first:.2f}",
    "tokens": lambda each: str(each.tokens),
    "forwards": lambda each: str(each.forwards),
    "tokens/s": lambda each: _speed_text(each.tokens / each.seconds),
    "threads": lambda each: str(each.threads),
    "GB of memory": lambda each: f"{each.memory / 1e9:.2f}",
}
"""Columns of a visit, by their names."""


@click.command(help=__doc__)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--turns", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--tokens", default=128, show_default=True, type=click.IntRange(min=1), help="Tokens of an answer.")
@click.option("--side", "sides", multiple=True, default=DEFAULT_SIDES, show_default=True, type=click.Choice(SIDES))
def main(bundle: Path, turns: int, tokens: int, sides: Sequence[str]) -> None:
    """Measure and print."""
    measured = [MEASURES[side](bundle, tokens, turns) for side in sides if side in MEASURES]
    columns: dict[str, Callable[[Side], str]] = {"side": lambda each: each.name}
    for index, (branches, window, prefix) in enumerate(SHAPES):
        name = f"{branches} x {window} behind {prefix}, ms"
        columns[name] = lambda each, index=index: ms_text(statistics.median(each.forwards[index]))  # type: ignore[misc]
    columns["tokens/s"] = lambda each: _speed_text(each.tokens_per_second)
    columns["ms to open"] = lambda each: ms_text(each.opening)
    tables = [table_from_records(f"Forwards, and an answer of {tokens} tokens", measured, columns)] if measured else []
    if "page" in sides:
        found = visit(bundle, _PROMPT, tokens=tokens)
        tables.append(table_from_records(f"First visit of a page in {found.browser}", [found], PAGE))
    show_report(tables)
