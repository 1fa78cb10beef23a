"""tools/gpu/README.md lists every wheel that an offline machine with torch may lack."""

import importlib.metadata
import re
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

PAGE = Path(__file__).resolve().parents[3] / "tools" / "gpu" / "README.md"
EXTRAS = ("", "export", "gpu")


def required(distribution: str, extras: Iterable[str]) -> set[tuple[str, tuple[str, ...]]]:
    """Return the names and extras of a distribution's requirements, or nothing if it is not installed."""
    try:
        requirements = map(Requirement, importlib.metadata.requires(distribution) or ())
    except importlib.metadata.PackageNotFoundError:
        return set()
    return {
        (re.sub(r"[-_.]+", "-", each.name.lower()), tuple(each.extras))
        for each in requirements
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    }


def closure(roots: Iterable[tuple[str, tuple[str, ...]]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name, extras = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += required(name, extras)
    return seen


def test_the_list_is_complete() -> None:
    block = PAGE.read_text(encoding="utf-8").partition("wheels.txt << END\n")[2].partition("\nEND\n")[0]
    listed = block.split()
    assert len(listed) == len(set(listed))
    needed = closure(required("lopa-export", EXTRAS)) - closure([("torch", ())])
    needed -= {"onnxruntime", "triton"}  # torch for CUDA requires the second
    assert {"msgspec", "rich", "onnx-ir", "onnxruntime-gpu"} <= needed
    assert needed - set(listed) == set()
