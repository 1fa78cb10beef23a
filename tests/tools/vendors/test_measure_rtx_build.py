"""What is measured of a build: its parts, on a process that goes through them, and that nothing is left behind."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.vendors.measure_rtx_build import main, new_folders_removed, watched_parts

SIZE = 100_000_000

# Holds SIZE bytes while it parses, thrice as many while it builds, and none while it writes a plan.
BUILD = f"""
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
parsed = bytearray(b"x") * {SIZE}
time.sleep(0.4)
print("TensorRT: Building engine", file=sys.stderr, flush=True)
folder.mkdir()
plan = (folder / "engine.plan").open("w")
built = bytearray(b"x") * {2 * SIZE}
time.sleep(0.4)
del parsed, built
plan.write("a plan")
plan.flush()
time.sleep(0.4)
"""


def test_the_parts_of_a_build(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    (earlier / "engine.plan").write_text("an engine that was there")
    with new_folders_removed(tmp_path) as new_folders:
        command = [sys.executable, "-c", BUILD, str(tmp_path / "engine")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            parts = watched_parts(process, new_folders)
        assert new_folders() == [tmp_path / "engine"]
    assert list(tmp_path.iterdir()) == [earlier]
    until_parsed, building, writing = parts
    assert [until_parsed.name, building.name, writing.name] == ["until the network is parsed", "building", "writing"]
    assert 0 == until_parsed.start < building.start < writing.start
    assert SIZE < until_parsed.anonymous < 1.5 * SIZE
    assert until_parsed.last == pytest.approx(until_parsed.peak, rel=0.05)
    assert 3 * SIZE < building.anonymous < 3.5 * SIZE
    assert 0 < writing.last < 0.5 * SIZE
    assert all(0 < part.mapped < SIZE for part in parts)


def test_a_build_that_fails_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ended = CliRunner().invoke(main, [str(tiny_bundle), str(out), "--build", "--gears nowhere"])
    assert ended.exit_code == 1
    assert "exit code 2" in ended.output
    assert "--rtx --gears nowhere" in ended.output
    assert not out.exists()
    assert not (tiny_bundle / "engines").exists()
