"""TensorRT's engine of the bundle that tools/gpu/report.py measures, built and verified by a user's own commands."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

from lopa.runtime.errors import CheckFailedError

COMMAND = (str(Path(sys.executable).with_name("lopa-export")),)
_SHOWN_LINES = 5


def has_tensorrt() -> bool:
    """Whether the package is installed here."""
    return importlib.util.find_spec("tensorrt") is not None


def engine_of_bundle(bundle: Path, number: int, seconds: float) -> None:
    """Build for the buckets of the bundle and hold the tokens against ONNX Runtime's on GPU `number`; again: a cache hit.

    Raises TimeoutExpired when that takes longer than `seconds`, CheckFailedError when a command fails.
    """
    end = time.perf_counter() + seconds
    for arguments in (("tensorrt", str(bundle)), ("verify", str(bundle), "--device", f"tensorrt:{number}")):
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=max(end - time.perf_counter(), 0.0),
            check=False,
        )
        if done.returncode != 0:
            said = " ".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:])
            raise CheckFailedError(
                f"lopa-export {arguments[0]} ended with {done.returncode}: {said}",
                expected="an engine whose tokens are right",
                remedy="run the command by hand (docs/how-to/engines.md, Troubleshooting)",
            )
