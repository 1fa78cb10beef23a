"""TensorRT's real Python bindings, fetched by pip into the cache of the tests: the versions of bindings.txt.

And TensorRT for RTX, with its real libraries: the versions of rtx.txt. Its parser and builder need no GPU.
"""

import fcntl
import importlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

PINS = (Path(__file__).parent / "bindings.txt").read_text().split()
RTX_PINS = (Path(__file__).parent / "rtx.txt").read_text().split()
RTX_VERSION = RTX_PINS[0].split("==")[1]


def installed_bindings(pin: str, config: pytest.Config) -> Path:
    """Skips where pip has no such wheel for this machine, or no network."""
    return installed_wheels(f"tensorrt-bindings-{pin.split('==')[1]}", [pin], config)


def installed_rtx(config: pytest.Config) -> Path:
    """The folder with tensorrt_rtx_bindings, for PYTHONPATH. Skips where pip has no such wheels, or no network."""
    return installed_wheels(f"tensorrt-rtx-{RTX_VERSION}", RTX_PINS, config)


def rtx_module(config: pytest.Config) -> ModuleType:
    """TensorRT for RTX in this process, 230 MB once imported. Skips as installed_rtx does."""
    folder = str(installed_rtx(config))
    if folder not in sys.path:
        sys.path.append(folder)  # last: nothing else is to come from there
    return importlib.import_module("tensorrt_rtx_bindings")


def installed_wheels(name: str, pins: Sequence[str], config: pytest.Config) -> Path:
    """The folder that pip installed `pins` to, without what they depend on, once for all test runs.

    `name`: of the folder in the tests' cache. Skips where pip does not get them.
    """
    folder = config.cache.mkdir(name)
    target = folder / "bindings"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            partial = folder / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", partial, *pins]
            wanted = " and ".join(pins)
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            except subprocess.TimeoutExpired:
                pytest.skip(f"pip did not fetch {wanted} within two minutes")
            if done.returncode != 0:
                pytest.skip(f"pip cannot fetch {wanted}: {done.stderr.strip().splitlines()[-1:]}")
            partial.rename(target)
    return target
