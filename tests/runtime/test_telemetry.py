"""ONNX Runtime sends no telemetry and stores no machine id in the user's home."""

import os
import subprocess
import sys
from pathlib import Path

DECODE = """
import sys
from lopa.runtime import Decoder
with Decoder.open(sys.argv[1], threads=1) as decoder:
    print(decoder.generate("Question: 2 + 3?", decoder.config(max_new_tokens=1)).stop_reason)
"""


def test_decoding_writes_nothing_to_the_users_home(tiny_bundle: Path, tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 writes deviceid and onnxruntime.db there by default."""
    inherited = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    own = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", DECODE, str(tiny_bundle)]
    done = subprocess.run(command, env={**inherited, **own}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*")) == []
