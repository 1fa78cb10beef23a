"""Clock of engine calls, without the copies and bindings around them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import onnxruntime as ort

from lopa.runtime.openvino.openvino_session import OpenVinoBinding

_CALLS: tuple[tuple[Any, str], ...] = ((ort.InferenceSession, "run_with_iobinding"), (OpenVinoBinding, "run"))
"""Class and method that run one forward of an engine: ONNX Runtime and OpenVINO."""


@contextmanager
def time_engine_calls() -> Iterator[list[float]]:
    """Return a context with a list to which every engine call of this process adds its seconds.

    The runtime does not time the call separately, so the context temporarily replaces the methods.
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
    def measure(*arguments: Any, **named: Any) -> None:
        began = time.perf_counter()
        original(*arguments, **named)
        seconds.append(time.perf_counter() - began)

    return measure
