import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.export.checkpoints import small_checkpoint
from tools.measure_export import HEADER, main, measured_run, resident_bytes, tree_of_process

SIZE = 100_000_000

# A process that has a child which holds SIZE bytes, and holds as many itself.
PARENT_AND_CHILD = f"""
import subprocess, sys, time
held = bytearray(b"x") * {SIZE}
child = subprocess.Popen([sys.executable, "-c", 'held = bytearray(b"x") * {SIZE}; print("ready", flush=True); input()'],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
input()
time.sleep(0.5)
child.communicate(b"end")
"""


def test_the_memory_of_a_tree() -> None:
    command = [sys.executable, "-c", PARENT_AND_CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert list(tree_of_process(process.pid)) == [process.pid, child]
        for number in (process.pid, child):
            assert SIZE < resident_bytes(number) < 1.5 * SIZE
        process.communicate("end")
    assert resident_bytes(process.pid) == 0
    assert list(tree_of_process(process.pid)) == [process.pid]


def test_a_run_s_peak_is_that_of_the_tree(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.stdin = open('/dev/null')\ninput = lambda: None\n" + PARENT_AND_CHILD)
    run = measured_run([sys.executable, str(script)])
    assert 2 * SIZE < run.peak_tree < 3 * SIZE
    assert SIZE < run.peak_command < 1.5 * SIZE
    assert run.seconds > 0.5


def test_a_run_that_fails() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        measured_run([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_table(tmp_path: Path, kept_traces_of_processes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kept_traces_of_processes.items():
        monkeypatch.setenv(name, value)
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"num_hidden_layers": 1})
    place = tmp_path / "place"
    ended = CliRunner().invoke(main, [str(checkpoint), str(place), "--export", "--dtype fp16"])
    assert ended.exit_code == 0
    lines = ended.output.splitlines()
    assert tuple(lines[:2]) == HEADER
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert len(cells) == HEADER[0].count("|") - 1
    assert cells[0] == "`--dtype fp16`"
    assert float(cells[5]) > 0.2  # torch alone
    assert not place.exists()


def test_an_export_that_fails_is_named(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    ended = CliRunner().invoke(main, [str(checkpoint), str(tmp_path / "place"), "--export", "--lora nowhere"])
    assert ended.exit_code == 1
    assert "exit code 2" in ended.output
    assert not (tmp_path / "place").exists()
