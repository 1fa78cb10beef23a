"""The seconds inside ONNX Runtime itself, without the copies and bindings around a call."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnxruntime as ort


@contextmanager
def engine_calls_timed() -> Iterator[list[float]]:
    """A list to which every call of InferenceSession.run_with_iobinding in this process adds its seconds.

    The runtime does not time the call alone, and should not for a benchmark's sake; so the method is replaced while
    the context lasts.
    """
    seconds: list[float] = []
    original = ort.InferenceSession.run_with_iobinding

    def timed(*arguments: Any, **named: Any) -> None:
        began = time.perf_counter()
        original(*arguments, **named)
        seconds.append(time.perf_counter() - began)

    ort.InferenceSession.run_with_iobinding = timed
    try:
        yield seconds
    finally:
        ort.InferenceSession.run_with_iobinding = original
