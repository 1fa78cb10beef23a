"""The npm packages and the build of lopa-web, which `make test-web` makes."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

WEB = Path(__file__).resolve().parents[2] / "web"
NODE = shutil.which("node")
WAIT = 1800.0
"""Seconds after which a program counts as hung."""

no_web = pytest.mark.skipif(
    NODE is None or not (WEB / "node_modules" / "ready").is_file() or not (WEB / "dist" / "index.js").is_file(),
    reason="needs node and npm packages: run `make test-web`",
)


def run_node(
    *arguments: str | Path, requests: Iterable[Mapping[str, Any]] = (), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program of web/test with `requests` as JSON lines. Fail with its errors if it fails."""
    assert NODE is not None
    done = subprocess.run(
        [NODE, *map(str, arguments)],
        cwd=WEB / "test",
        env={**os.environ, **(environment or {})},
        input="".join(f"{json.dumps(request)}\n" for request in requests),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done


def text_answers(*lines: Any) -> list[dict[str, Any]]:
    """Return what lopa-web finds for each line (web/test/texts.mjs)."""
    found = [json.loads(line) for line in run_node("texts.mjs", requests=lines).stdout.split("\n")[:-1]]
    assert len(found) == len(lines)
    return found


def decodes_of(bundle: Path, device: str, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the decode of every request by lopa-web on a device, with all steps (web/test/replay.mjs)."""
    lines = run_node("replay.mjs", bundle, device, requests=requests).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert len(found) == len(requests)
    return found


def source(name: str) -> str:
    """Return the text of a file in web/src."""
    return (WEB / "src" / name).read_text(encoding="utf-8")


def strings_in(text: str, name: str, end: str) -> list[str]:
    """Return the names in quotes from `name` to the first `end` behind it."""
    begin = text.index(name)
    return re.findall(r'"([a-z0-9_]+)"', text[begin : text.index(end, begin)])


def options_only_in_python() -> list[str]:
    """Return the decoding options that lopa-web rejects by name."""
    text = source("generation_config/config.ts")
    begin = text.index("ONLY_IN_PYTHON = (")
    return " ".join(re.findall(r'"([a-z0-9_ ]+)"', text[begin : text.index(")", begin)])).split()
