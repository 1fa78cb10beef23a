"""PYTHONPATH of the processes that tests start."""

import os
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_path(*folders: Path | str) -> str:
    """`folders`, or those of a checkout, before whatever PYTHONPATH has: libraries may lie there alone."""
    found: Iterable[Path | str] = folders or (ROOT / "src", ROOT)
    return os.pathsep.join(filter(None, [*map(str, found), os.environ.get("PYTHONPATH", "")]))
