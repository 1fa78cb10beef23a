"""Libraries that only some tests need. A test module is skipped if its own library is missing; others are collected."""

import sys
from pathlib import Path

_NAMES = (
    "cuda httptools httpx2 hypothesis importlinter jsonschema llguidance matplotlib mpi4py onnx",
    "onnx_ir onnxscript openai opentelemetry openvino peft prometheus_client safetensors starlette",
    "torch transformers triton uvicorn yaml",
)
OPTIONAL = frozenset(name for line in _NAMES for name in line.split())
"""Module names of libraries in the extras export, plot and test."""


def missing_library(error: BaseException | None) -> str | None:
    """Return the optional library that an import failed for; None for any other error."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or "").partition(".")[0]
            if name in OPTIONAL:
                return name
        error = error.__cause__ or error.__context__
    return None


def forget_module(path: Path) -> None:
    """Remove the remains of a failed import of the module at `path`, so that the next import raises the same error."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(path):
            del sys.modules[name]
