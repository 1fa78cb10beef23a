"""Garbage collection is off while TensorRT works."""

import gc

import pytest

from lopa.runtime.tensorrt.tensorrt_library import garbage_collection_disabled


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
