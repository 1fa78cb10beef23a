"""PYTHONPATH of the processes that tests start."""

import os
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_path(*folders: Path | str) -> str:
    """Return PYTHONPATH with `folders`, by default those of this checkout, before the current entries.

    The current entries stay, because libraries may be installed there only.
    """
    found: Iterable[Path | str] = folders or (ROOT / "src", ROOT)
    return os.pathsep.join(filter(None, [*map(str, found), os.environ.get("PYTHONPATH", "")]))
