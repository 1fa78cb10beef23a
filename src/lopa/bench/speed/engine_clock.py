"""The seconds inside the engine itself, without the copies and bindings around a call."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import onnxruntime as ort

from lopa.runtime.openvino.session import OpenVinoBinding

_CALLS: tuple[tuple[Any, str], ...] = ((ort.InferenceSession, "run_with_iobinding"), (OpenVinoBinding, "run"))
"""The class and the method that is one forward of an engine: ONNX Runtime, OpenVINO."""


@contextmanager
def engine_calls_timed() -> Iterator[list[float]]:
    """A list to which every call of an engine in this process adds its seconds.

    The runtime does not time the call alone, and should not for a benchmark's sake; so the methods are replaced while
    the context lasts.
    """
    seconds: list[float] = []
    originals = [getattr(owner, name) for owner, name in _CALLS]
    for (owner, name), original in zip(_CALLS, originals, strict=True):
        setattr(owner, name, _timed(original, seconds))
    try:
        yield seconds
    finally:
        for (owner, name), original in zip(_CALLS, originals, strict=True):
            setattr(owner, name, original)


def _timed(original: Callable[..., None], seconds: list[float]) -> Callable[..., None]:
    def timed(*arguments: Any, **named: Any) -> None:
        began = time.perf_counter()
        original(*arguments, **named)
        seconds.append(time.perf_counter() - began)

    return timed
