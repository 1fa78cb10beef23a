"""Open bundles, run their engines and decode with LoPA, without torch, transformers or onnx.

This package has the same public names as `lopa` (docs/reference/python.md). Each is loaded on first use, so a module of
this package loads only what it needs.
"""

import os
from typing import TYPE_CHECKING, Any

import lopa

if TYPE_CHECKING:
    from lopa import *  # noqa: F403

# Set before a session imports onnxruntime. Version 1.31 otherwise writes a machine id and telemetry events into the
# user's cache. "0" in the environment allows it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if not TYPE_CHECKING:  # as in lopa
    __all__ = lopa.__all__

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(lopa, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
