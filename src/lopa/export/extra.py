"""Around imports of what the extra `export` brings. Imports nothing of it itself."""

from contextlib import AbstractContextManager

from lopa.runtime.extra import extra_needed

_MODULES = ("torch", "transformers", "safetensors", "onnx", "onnx_ir", "onnxscript")


def export_extra_needed(purpose: str) -> AbstractContextManager[None]:
    """An absent library of the extra becomes MissingBackendError; `purpose` says what needs it."""
    return extra_needed("export", _MODULES, f"the libraries for {purpose}")
