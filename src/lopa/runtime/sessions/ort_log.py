"""Severity of ONNX Runtime's default logger, which logs what happens outside of sessions."""

from collections.abc import Iterator
from contextlib import contextmanager

import onnxruntime as ort

ERRORS_ONLY = 3
"""Severity of a logger that prints errors and no warnings."""


@contextmanager
def errors_only() -> Iterator[None]:
    """Print the default logger's errors and no warnings during the block. ONNX Runtime cannot return the severity, so
    its default is restored.
    """
    ort.set_default_logger_severity(ERRORS_ONLY)
    try:
        yield
    finally:
        ort.set_default_logger_severity(2)  # warnings and errors
