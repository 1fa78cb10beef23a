"""Garbage collection is off while TensorRT works."""

import gc
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lopa.runtime.tensorrt.tensorrt_library import garbage_collection_disabled

_BUILDER_WITH_GARBAGE = """
import gc, sys
sys.path.append(sys.argv[1])
import tensorrt_rtx_bindings as trt
from lopa.runtime.tensorrt.tensorrt_library import garbage_collection_disabled

class CollectingLogger(trt.ILogger):  # collects like Python may at any call
    def __init__(self):
        trt.ILogger.__init__(self)

    def log(self, severity, message):
        if gc.isenabled():
            gc.collect()

def lose_a_builder():
    box = [trt.Builder(CollectingLogger())]
    box.append(box)

gc.disable()
lose_a_builder()
gc.enable()
with garbage_collection_disabled():
    trt.Builder(CollectingLogger())
print("done")
"""


@pytest.fixture
def collecting() -> bool:
    assert gc.isenabled()
    return True


def test_collection_is_off_inside_the_block(collecting: bool) -> None:
    with garbage_collection_disabled():
        assert not gc.isenabled()
        with garbage_collection_disabled():  # as in another thread
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_disabled_collection_stays_disabled(collecting: bool) -> None:
    gc.disable()
    try:
        with garbage_collection_disabled(), pytest.raises(ValueError, match="x"), garbage_collection_disabled():
            raise ValueError("x")
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.tensorrt_rtx
def test_real_library_does_not_deadlock(real_rtx: ModuleType) -> None:
    """Version 1.7.1 deadlocks if a lost builder is collected while another one is created."""
    folder = str(Path(str(real_rtx.__file__)).parents[1])
    command = [sys.executable, "-c", _BUILDER_WITH_GARBAGE, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr
