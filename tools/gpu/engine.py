"""Build and verify the TensorRT engine of the GPU report's bundle with the user-facing commands."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

from lopa.runtime.errors import CheckFailedError

COMMAND = (str(Path(sys.executable).with_name("lopa-export")),)
_SHOWN_LINES = 5


def has_tensorrt() -> bool:
    """Return True if the tensorrt package is installed."""
    return importlib.util.find_spec("tensorrt") is not None


def engine_of_bundle(bundle: Path, number: int, seconds: float) -> None:
    """Build the engine for the bundle's shape buckets, and verify its tokens against ONNX Runtime on GPU `number`.

    An existing engine is reused. Raises TimeoutExpired after `seconds`, and CheckFailedError if a command fails.
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
            stderr = " ".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:])
            raise CheckFailedError(
                f"lopa-export {arguments[0]} ended with {done.returncode}: {stderr}",
                expected="a verified engine",
                remedy="run the command manually (docs/how-to/engines.md, Troubleshooting)",
            )
