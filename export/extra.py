"""Imports what the extra `export` brings, and says what to install where it is absent. Imports nothing itself."""

from collections.abc import Iterator
from contextlib import contextmanager

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install

# An absent module of any other name is a fault of ours and stays a traceback.
_MODULES = {"torch", "transformers", "safetensors", "onnx", "onnx_ir", "onnxscript"}


@contextmanager
def export_extra_needed(purpose: str) -> Iterator[None]:
    """Around imports: an absent library of the extra becomes MissingBackendError; `purpose` says what needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _MODULES:
            raise
        raise MissingBackendError(
            f"{error.name} is not installed",
            expected=f"the libraries for {purpose}",
            remedy=pip_install("export"),
        ) from error
