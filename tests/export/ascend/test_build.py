import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from lopa.export.ascend.build import run_command

CHILD = "import pathlib, subprocess, time; p = subprocess.Popen(['sleep', '60']); "
CHILD += "pathlib.Path('child').write_text(str(p.pid)); "


def ends(process: int) -> bool:
    """Return True if the process ends soon. A zombie has ended, but its parent has not yet collected it."""
    for _ in range(100):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def run(code: str, folder: Path) -> int:
    return run_command(
        ["python", "-c", code],
        program=Path(sys.executable),
        folder=folder,
        log=folder / "log",
        environment=os.environ,
    )


def interrupt_after_child(folder: Path) -> None:
    """Press Ctrl-C, in a thread, as soon as the file `child` exists."""

    def wait_and_interrupt() -> None:
        deadline = time.monotonic() + 60
        while not (folder / "child").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait_and_interrupt).start()


def test_output_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    code = "import os, sys; print('out', flush=True); print('err', file=sys.stderr); print(os.getcwd()); sys.exit(255)"
    assert run(code, tmp_path) == 255
    assert (tmp_path / "log").read_text() in (
        f"before\nout\nerr\n{tmp_path}\n",
        f"before\nout\n{tmp_path}\nerr\n",
    )
    assert run("import os; os.kill(os.getpid(), 9)", tmp_path) == -9


def test_leaving_early_ends_it_and_its_children(tmp_path: Path) -> None:
    interrupt_after_child(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(CHILD + "time.sleep(60)", tmp_path)
    assert ends(int((tmp_path / "child").read_text()))


def test_a_process_that_ignores_signals_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lopa.export.ascend.build._GRACE", 0.2)

    interrupt_after_child(tmp_path)
    deaf = "import signal, os, pathlib, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    deaf += "pathlib.Path('child').write_text(str(os.getpid())); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        run(deaf, tmp_path)
    assert ends(int((tmp_path / "child").read_text()))


def test_children_left_running_are_ended(tmp_path: Path) -> None:
    assert run(CHILD, tmp_path) == 0
    assert ends(int((tmp_path / "child").read_text()))
