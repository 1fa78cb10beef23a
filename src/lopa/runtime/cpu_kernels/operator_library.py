"""Compiled libraries with operators of ONNX Runtime, for `cpu` and for `cuda:N`.

They are optional extension modules, which setup.py builds where it can. They have the file name of a module but no
Python interface. They are loaded with ctypes, never imported.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FALLBACK = "; ONNX Runtime's kernels are used"
"""Part of a status that says what runs without a library."""
_REASON = "_kernels.not-built"
"""File with the error of a build that failed (setup.py)."""


class SessionOptions(Protocol):
    """The part of onnxruntime.SessionOptions that takes operators."""

    intra_op_num_threads: int
    """Number of threads of an operator, or 0 for ONNX Runtime's choice."""

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Add an entry, which libraries can read."""

    def register_custom_ops_library(self, library_path: str) -> None:
        """Register the operators of a library."""


@dataclass(frozen=True)
class OperatorLibrary:
    """A library, loaded into this process."""

    path: Path

    def add_operators(self, options: SessionOptions) -> None:
        """Make the operators known to sessions with `options`."""
        options.register_custom_ops_library(str(self.path))


def library_path(folder: Path, name: str) -> Path | None:
    """Return the file of the library `name` in a folder of this package, or None if it is not installed."""
    return next(iter(sorted(folder.glob(f"{name}.*so"))), None)


def status_of_missing(folder: Path) -> str:
    """Return why the folder has no library and what to do, for users."""
    reason = folder / _REASON
    found = f"not built: {reason.read_text(encoding='utf-8').strip()}" if reason.exists() else "not installed"
    return f"{found}{FALLBACK}. Install a C++ compiler, then reinstall lopa-export"
