"""Cold start: fresh processes that import the runtime, open a bundle and run one step."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa.bench.report import Run
from lopa.bench.table import Table, table_from_records
from lopa.runtime.errors import CheckFailedError

STARTS = 5
_PROGRAM = """
import time
began = time.perf_counter()
import json, sys
from lopa import Decoder
imported = time.perf_counter()
path, devices, threads = json.loads(sys.argv[1])
decoder = Decoder.open(path, devices, threads=threads)
opened = time.perf_counter()
steps = []
has_canvas = decoder.bundle.manifest.dimensions.canvas is not None
options = {"max_denoising_steps": 1} if has_canvas else {"strategy": "vanilla"}
config = decoder.config(**options, max_new_tokens=1)
for _ in decoder.stream("1", config, on_step=lambda step: steps.append(time.perf_counter())):
    pass
print(json.dumps([imported - began, opened - imported, steps[0] - opened]))
"""


@dataclass(frozen=True)
class ColdStart:
    """Seconds of one cold start."""

    imported: float
    """Seconds of importing lopa.runtime."""
    opened: float
    """Seconds of opening the bundle on the device."""
    forward: float
    """Seconds of the first decoding step, which is one forward."""
    process: float
    """Seconds of the whole process, including the interpreter."""

    @property
    def to_first_forward(self) -> float:
        """Seconds from the import to the end of the first forward."""
        return self.imported + self.opened + self.forward


@dataclass(frozen=True)
class ColdReport:
    """Report of `lopa-export bench cold`."""

    benchmark: str
    run: Run
    starts: tuple[ColdStart, ...]
    to_first_forward_median: float


def report_from_starts(run: Run, starts: tuple[ColdStart, ...]) -> ColdReport:
    """Return the report with the median time to the first forward."""
    return ColdReport("cold", run, starts, statistics.median(start.to_first_forward for start in starts))


def measure_cold_start(bundle: Path, devices: Sequence[str], threads: int | None) -> ColdStart:
    """Measure one cold start. Files may be in the page cache, so disk time is not measured.

    Raises CheckFailedError with the process's error if it fails.
    """
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps([str(bundle), list(devices), threads])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    process = time.perf_counter() - began
    if done.returncode:
        received, _, rest = done.stderr.strip().rpartition("Error: ")[2].partition("\n  expected: ")
        expected, _, remedy = rest.partition("\n  what to do: ")
        raise CheckFailedError(
            f"a fresh process failed to run {bundle} on {', '.join(devices)}: {received[-500:]}",
            expected=expected or "one forward",
            remedy=remedy or "run lopa-export generate with the same bundle and devices",
        )
    imported, opened, forward = json.loads(done.stdout)
    return ColdStart(imported, opened, forward, process)


def table_from_cold(report: ColdReport) -> Table:
    """Return a table of the medians over all starts."""
    parts: dict[str, Callable[[ColdStart], float]] = {
        "import the runtime": lambda start: start.imported,
        "open the bundle": lambda start: start.opened,
        "first forward": lambda start: start.forward,
        "import to first forward": lambda start: start.to_first_forward,
        "whole process": lambda start: start.process,
    }
    return table_from_records(
        f"Cold start: median milliseconds of {len(report.starts)} fresh processes, {report.run.machine.cpu}",
        parts,
        {
            "phase": lambda part: part,
            "milliseconds": lambda part: f"{statistics.median(map(parts[part], report.starts)) * 1e3:.0f}",
        },
    )
