"""PYTHONPATH of processes that tests start."""

import os
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_path(*folders: Path | str) -> str:
    """Return `folders`, or those of a checkout, before the current PYTHONPATH, which may contain required libraries."""
    found: Iterable[Path | str] = folders or (ROOT / "src", ROOT)
    return os.pathsep.join(filter(None, [*map(str, found), os.environ.get("PYTHONPATH", "")]))
