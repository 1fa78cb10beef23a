"""`python -m tools.measure web` measures Python, Node and Chromium, and visits a page."""

from pathlib import Path

import pytest
from tests.serve.chromium import in_chromium
from tests.tools.run_tool import run_tool
from tests.web.installed import no_web

pytestmark = [pytest.mark.web, no_web]


@in_chromium
def test_every_side_is_measured(tiny_bundle: Path) -> None:
    done = run_tool("measure", "web", tiny_bundle, "--turns", 1, "--tokens", 8)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "|" in line]
    sides = [row for row in rows if row[0].startswith(("Python", "lopa-web"))]
    assert [row[0].rpartition(", ")[2] for row in sides] == [
        "cpu",
        "onnxruntime-node",
        "WebAssembly in Node",
        "WebAssembly in Chromium",
    ]
    assert all(float(cell) > 0 for row in sides for cell in row[1:])
    [page] = [row for row in rows if len(row) == 8 and not row[0].startswith((":", "MB"))]
    megabytes, ready, first, tokens, forwards, speed, threads, memory = map(float, page)
    bundle = sum(path.stat().st_size for path in tiny_bundle.iterdir()) / 1e6
    assert bundle + 14 < megabytes < bundle + 16, "not the bundle and WebAssembly"
    assert tokens == 8
    assert 1 <= forwards <= tokens
    assert threads >= 1
    assert 0.1 < memory < 4
    assert min(ready, first, speed) > 0
