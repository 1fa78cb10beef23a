"""TensorRT's real Python bindings, installed by pip into the tests' cache in the versions of bindings.txt.

Also TensorRT for RTX with its real libraries in the versions of rtx.txt. Its parser and builder need no GPU.
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
    """Install the bindings of `pin`. Skip the test without network or a wheel for this machine."""
    return installed_wheels(f"tensorrt-bindings-{pin.split('==')[1]}", [pin], config)


def installed_rtx(config: pytest.Config) -> Path:
    """Return the folder with tensorrt_rtx_bindings, for PYTHONPATH. Skip the test without network or wheels."""
    return installed_wheels(f"tensorrt-rtx-{RTX_VERSION}", RTX_PINS, config)


def rtx_module(config: pytest.Config) -> ModuleType:
    """Import TensorRT for RTX into this process (230 MB). Skip the test like installed_rtx."""
    folder = str(installed_rtx(config))
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that nothing else is imported from there
    return importlib.import_module("tensorrt_rtx_bindings")


def installed_wheels(name: str, pins: Sequence[str], config: pytest.Config) -> Path:
    """Install `pins` without dependencies, once for all test runs, and return the folder.

    `name` is the folder in the tests' cache. Skip the test if pip cannot fetch them.
    """
    folder = config.rootpath / ".pytest_cache" / "d" / name  # also with -p no:cacheprovider
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "bindings"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            partial = folder / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", partial, *pins]
            requirements = " and ".join(pins)
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            except subprocess.TimeoutExpired:
                pytest.skip(f"pip did not fetch {requirements} within two minutes")
            if done.returncode != 0:
                pytest.skip(f"pip cannot fetch {requirements}: {done.stderr.strip().splitlines()[-1:]}")
            partial.rename(target)
    return target
