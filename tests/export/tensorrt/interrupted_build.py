"""A build in a separate process that receives a real Ctrl-C, and prints what happened, without assertions.

Errors there may end the process, so tests start it as a program.
"""

import importlib
import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGINT
from types import ModuleType

from tests.buckets import bucket
from tests.runtime.tensorrt.buckets import target
from tests.runtime.tensorrt.stand_in_tensorrt import stand_in_tensorrt

from lopa.export.progress import ProgressCallback
from lopa.export.tensorrt import builder
from lopa.export.tensorrt.builder import Cancellable, progress_monitor
from lopa.export.tensorrt.engine import engine_from_job, job_from_bundle
from lopa.export.tensorrt.rtx import target_of_rtx
from lopa.runtime.bundle import Bundle
from lopa.runtime.tensorrt.tensorrt_manifest import BuildFlags

_BUILDING = "building"
_SECONDS = 60


@dataclass(frozen=True)
class Seen:
    """State after an interrupted build."""

    interrupted: bool
    """True if it raised KeyboardInterrupt."""
    reports: list[tuple[str, int, int]]
    building: bool
    """True if a build thread still existed."""
    left: list[str]
    """Files in engines/."""


def state_after_interrupt(bundle: Path, rtx: ModuleType | None = None) -> Seen:
    """Build for `bundle` with the stand-in or TensorRT for RTX, and interrupt at the first report of progress."""
    folder = "" if rtx is None else str(Path(str(rtx.__file__)).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", __name__, bundle, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        begun = process.stdout.readline().strip()
        process.send_signal(SIGINT)
        output, errors = process.communicate(timeout=2 * _SECONDS)
    assert (begun, process.returncode) == (_BUILDING, 0), errors
    seen = json.loads(output)
    return Seen(**{**seen, "reports": [tuple(each) for each in seen["reports"]]})


def main() -> None:
    """Take two arguments: a bundle, and the folder of TensorRT for RTX, empty for the stand-in."""
    bundle, reports, cancelled = Bundle.open(sys.argv[1]), list[tuple[str, int, int]](), threading.Event()

    def watched_monitor(trt: ModuleType, tell: ProgressCallback) -> Cancellable:
        monitor = progress_monitor(trt, tell)
        cancel = monitor.cancel

        def cancel_and_print() -> None:
            cancel()
            cancelled.set()

        monitor.cancel = cancel_and_print  # type: ignore[method-assign]
        return monitor

    def tell(phase: str, done: int, total: int) -> None:
        reports.append((phase, done, total))
        if len(reports) == 1:
            print(_BUILDING, flush=True)
            cancelled.wait(_SECONDS)
            time.sleep(0.2)  # like a long step: the calling thread must not return before it

    builder.progress_monitor = watched_monitor
    flags, interrupted = BuildFlags(), False
    if sys.argv[2]:
        sys.path.append(sys.argv[2])
        trt = importlib.import_module("tensorrt_rtx_bindings")
        wanted = target_of_rtx(trt, [], flags)
    else:
        trt = stand_in_tensorrt(10)
        wanted = target(trt)
    job = job_from_bundle(bundle, [bucket(1, 2, 32, 64), bucket(1, 1, 96, 128)], flags)
    try:
        engine_from_job(job, trt, wanted, None, tell)
    except KeyboardInterrupt:
        interrupted = True
    time.sleep(0.1)  # lets an ended thread disappear
    engines = bundle.path / "engines"
    seen = Seen(
        interrupted=interrupted,
        reports=reports,
        building="tensorrt-build" in {thread.name for thread in threading.enumerate()},
        left=sorted(path.name for path in engines.iterdir()) if engines.exists() else [],
    )
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main()
