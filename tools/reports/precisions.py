"""Quality of number formats: best tokens in recorded decodes, and answers to the same questions.

Usage: python -m tools.measure precisions [BUNDLES ..] [--outcomes FILE ..]

BUNDLES are the embedded model with its adapter, the first one in float32. It decodes the recordings of tests/reference.
The others compute the same forwards, so their tokens are forced. A forward has a best token for each position that it
predicts. FILES are quality.outcomes.jsonl of `lopa-export bench quality -o` for the same questions and strategies;
scores are compared with the first one. Intervals are of 95 %, by bootstrap over prompts or questions.
"""

import json
from pathlib import Path

import click
import numpy as np
from tests.conformance.recorded import compare, prompt_of, read_traces, trace_files
from tests.lockstep import Lockstep
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.bench.comparison.paired_statistics import interval_from_resamples, resampled_ratios
from lopa.bench.table import Table
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import CheckFailedError
from lopa.runtime.sessions.session import open_session
from tools.report import show_report

_PATH = click.Path(exists=True, path_type=Path)


def agreement(bundles: tuple[Path, ...], prompts: int) -> Table:
    """Return how often the best token of each bundle is that of the first one, in recorded decodes."""
    opened = [Bundle.open(path) for path in bundles]
    devices = ["numpy" if bundle.manifest.dtype == "bfloat16" else "cpu" for bundle in opened]
    session = Lockstep([open_session(*each, threads=1) for each in zip(opened, devices, strict=True)])
    equal, rows = [list[int]() for _ in bundles], list[int]()
    for path in trace_files():
        config, traces = read_traces(path)
        for trace in traces[:prompts]:
            decoding = LoneDecode(session, prompt_of(trace), params_of(config), opened[0].manifest)
            steps, counts = [], np.zeros(1 + len(bundles), int)
            while decoding.stop_reason is None:
                steps.append(decoding.step())
                best = [each.topk_ids[..., 0] for each in session.seen[-1]]
                counts += [best[0].size, *(np.sum(each == best[0]) for each in best)]
                session.seen.clear()
            decoding.release()
            if (mismatch := compare(trace, steps, decoding.answer.generated).mismatch) is not None:
                raise CheckFailedError(
                    mismatch, expected=f"the decodes of {path.name}", remedy="check the first bundle"
                )
            rows.append(counts[0])
            for number, count in enumerate(counts[1:]):
                equal[number].append(count)
    cells = [
        (path.name, device, _share(each, rows)) for path, device, each in zip(bundles, devices, equal, strict=True)
    ]
    return Table(
        f"{sum(rows)} tokens of {len(rows)} recorded decodes", ("bundle", "device", "best token equal"), tuple(cells)
    )


def _share(above: list[int], below: list[int]) -> str:
    share = sum(above) / sum(below)
    interval = interval_from_resamples(share, resampled_ratios(above, below))
    return f"{share:.2%} ({interval.low:.2%} to {interval.high:.2%})"


def scores(files: tuple[Path, ...]) -> Table:
    """Return scores in points, and their differences from the first file's, of questions with all outcomes."""
    found = [_scores(path) for path in files]
    names = sorted({config for each in found for config, _ in each})
    every = sorted({prompt for _, prompt in found[0]})
    prompts = [each for each in every if all((name, each) in of for of in found for name in names)]
    points = np.array([[[of[name, each] for name in names] for each in prompts] for of in found]) * 100
    means = points.mean(axis=2)
    ones = [1] * len(prompts)
    rows = []
    for path, own, mean in zip(files, points, means, strict=True):
        lost = (mean - means[0]).tolist()
        interval = interval_from_resamples(float(np.mean(lost)), resampled_ratios(lost, ones))
        difference = f"{np.mean(lost):+.1f} ({interval.low:+.1f} to {interval.high:+.1f})"
        rows.append((path.parent.name, *(f"{each:.1f}" for each in own.mean(axis=0)), f"{mean.mean():.1f}", difference))
    columns = ("bundle", *names, "mean", f"points against {files[0].parent.name}")
    return Table(f"{len(prompts)} questions", columns, tuple(rows))


def _scores(path: Path) -> dict[tuple[str, str], float]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return {(each["config"], each["prompt"]): each["outcome"]["score"] for each in lines}


@click.command()
@click.argument("bundles", nargs=-1, type=_PATH)
@click.option("--prompts", default=4, show_default=True, help="Prompts of each of 31 recordings.")
@click.option(
    "--outcomes", multiple=True, type=_PATH, help="Outcomes of a bundle; the first are the baseline. Repeatable."
)
def main(bundles: tuple[Path, ...], prompts: int, outcomes: tuple[Path, ...]) -> None:
    """Compare number formats by best tokens in recorded decodes, and by answers to the same questions."""
    show_report([*([agreement(bundles, prompts)] if bundles else []), *([scores(outcomes)] if outcomes else [])])
