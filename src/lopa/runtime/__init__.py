"""Open bundles, run their engines and decode with LoPA. Needs neither torch, transformers nor onnx.

The public names are those of `lopa` (docs/reference/python.md). They can be imported from here too, and are loaded when
they are first used, so that a module of this package loads what it needs itself and nothing else.
"""

import os
from typing import TYPE_CHECKING, Any

import lopa

if TYPE_CHECKING:
    from lopa import *  # noqa: F403

# Before onnxruntime is imported, which is when a session is opened. Version 1.31 writes an id of the machine and events
# for its makers into the user's cache, unless it is told otherwise. "0" in the environment allows it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if not TYPE_CHECKING:  # as in lopa
    __all__ = lopa.__all__

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(lopa, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
