"""What garbage does while TensorRT is at work: nothing."""

import gc
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lopa.runtime.tensorrt.held_garbage import garbage_held

_BUILDER_WITH_GARBAGE = """
import gc, sys
sys.path.append(sys.argv[1])
import tensorrt_rtx_bindings as trt
from lopa.runtime.tensorrt.held_garbage import garbage_held

class Searching(trt.ILogger):  # as Python may do whenever it is called
    def __init__(self):
        trt.ILogger.__init__(self)

    def log(self, severity, message):
        if gc.isenabled():
            gc.collect()

def lose_a_builder():
    box = [trt.Builder(Searching())]
    box.append(box)

gc.disable()
lose_a_builder()
gc.enable()
with garbage_held():
    trt.Builder(Searching())
print("through")
"""


@pytest.fixture
def collecting() -> bool:
    assert gc.isenabled()
    return True


def test_none_is_looked_for_in_between(collecting: bool) -> None:
    with garbage_held():
        assert not gc.isenabled()
        with garbage_held():  # as of another thread
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_where_nothing_was_looked_for_nothing_is_afterwards(collecting: bool) -> None:
    gc.disable()
    try:
        with garbage_held(), pytest.raises(ValueError, match="x"), garbage_held():
            raise ValueError("x")
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.tensorrt_rtx
def test_the_real_library_does_not_wait_for_itself(real_rtx: ModuleType) -> None:
    """As 1.7.1 does, for ever, where a lost builder is found while another is made."""
    folder = str(Path(str(real_rtx.__file__)).parents[1])
    command = [sys.executable, "-c", _BUILDER_WITH_GARBAGE, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "through\n", done.stderr
