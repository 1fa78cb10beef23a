"""Imports of the libraries in the extra `export`. This module imports none of them itself."""

from contextlib import AbstractContextManager

from lopa.runtime.extra import extra_needed

_MODULES = ("torch", "transformers", "safetensors", "onnx", "onnx_ir", "onnxscript")


def export_extra_needed(purpose: str) -> AbstractContextManager[None]:
    """Convert the ImportError of a missing library to MissingBackendError; `purpose` names the work that needs it."""
    return extra_needed("export", _MODULES, f"the libraries for {purpose}")
