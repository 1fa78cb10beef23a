"""TensorRT's real Python bindings, fetched by pip into the cache of the tests: the versions of bindings.txt."""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PINS = (Path(__file__).parent / "bindings.txt").read_text().split()


def installed_bindings(pin: str, config: pytest.Config) -> Path:
    """Skips where pip has no such wheel for this machine, or no network."""
    folder = config.cache.mkdir(f"tensorrt-bindings-{pin.split('==')[1]}")
    target = folder / "bindings"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            partial = folder / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", partial, pin]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            except subprocess.TimeoutExpired:
                pytest.skip(f"pip did not fetch {pin} within two minutes")
            if done.returncode != 0:
                pytest.skip(f"pip cannot fetch {pin}: {done.stderr.strip().splitlines()[-1:]}")
            partial.rename(target)
    return target
