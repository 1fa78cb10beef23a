"""PYTHONPATH of processes that tests start."""

import os
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_path(*folders: Path | str) -> str:
    """Return `folders`, by default the checkout's, and the current PYTHONPATH, which may have needed libraries."""
    found: Iterable[Path | str] = folders or (ROOT / "src", ROOT)
    return os.pathsep.join(filter(None, [*map(str, found), os.environ.get("PYTHONPATH", "")]))
