"""Writing to user paths: special files are opened, links are followed, and unwritable paths fail early."""

import errno
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lopa.runtime.errors import BadInputError, OutputFailedError
from lopa.runtime.files.output_file import (
    OutputLines,
    check_replaceable,
    defer_signals,
    inspect_output_path,
    write_atomically,
)


def write_lines(path: Path, data: bytes) -> None:
    with OutputLines.open(inspect_output_path(path)) as lines:
        lines.begin()
        for line in data.decode().splitlines():
            lines.write(line)


both_ways = pytest.mark.parametrize("write", [write_lines, write_atomically])
Write = Callable[[Path, bytes], None]


@both_ways
def test_new_and_existing_file(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, b"first, longer\n")
    path.chmod(0o604)
    write(path, b"second\n")
    assert path.read_bytes() == b"second\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


@both_ways
@pytest.mark.parametrize("name", ["n" * 255, "\udcff"])
def test_any_valid_file_name(write: Write, name: str, tmp_path: Path) -> None:
    write(tmp_path / name, b"text\n")
    assert (tmp_path / name).read_bytes() == b"text\n"
    assert len(list(tmp_path.iterdir())) == 1


@both_ways
def test_fifo_is_written_not_replaced(write: Write, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    reader.start()
    write(fifo, b"one\ntwo\n")
    reader.join()
    assert found == [b"one\ntwo\n"]
    assert stat.S_ISFIFO(fifo.lstat().st_mode)


@both_ways
@pytest.mark.parametrize("exists", [True, False])
def test_links_are_followed(write: Write, exists: bool, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, middle, link = tmp_path / "elsewhere" / "target", tmp_path / "middle", tmp_path / "link"
    middle.symlink_to("elsewhere/target")
    link.symlink_to(middle)
    if exists:
        target.write_text("before, and longer")
    write(link, b"text\n")
    assert target.read_bytes() == b"text\n"
    assert link.is_symlink()
    assert middle.is_symlink()
    assert [each.name for each in target.parent.iterdir()] == ["target"]


def test_a_whole_file_is_made_beside_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link may be on another file system, and an existing file in a folder that only others may change."""
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    link.symlink_to(target)
    made: list[Path] = []
    monkeypatch.setattr(Path, "replace", lambda path, to: (made.append(path.parent), os.replace(path, to)))  # noqa: PTH105
    write_atomically(link, b"text\n")
    assert made == [target.parent]
    monkeypatch.setattr(os, "access", lambda path, _: path != target.parent)
    inspect_output_path(link)
    for write in (check_replaceable, lambda path: write_atomically(path, b"again\n")):
        with pytest.raises(BadInputError, match="Permission denied"):
            write(link)
    assert target.read_bytes() == b"text\n"


def unwritable_paths(folder: Path) -> dict[str, Path]:
    (folder / "file").write_text("stays")
    (folder / "loop").symlink_to("pool")
    (folder / "pool").symlink_to("loop")
    (folder / "lost").symlink_to("no/folder")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(folder / "socket"))
    return {
        "below a file": folder / "file" / "x",
        "no folder": folder / "no" / "x",
        "name too long": folder / ("n" * 256),
        "path too long": folder.joinpath(*["n" * 200] * 30),
        "folder": folder,
        "here": Path(),
        "root": Path("/"),
        "NUL": folder / "a\0b",
        "loop": folder / "loop",
        "below a loop": folder / "loop" / "x",
        "link to nowhere": folder / "lost",
        "socket": folder / "socket",
    }


@both_ways
def test_unwritable_path_raises_and_nothing_changes(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # socket paths must be short
    paths = unwritable_paths(tmp_path)
    before = sorted(each.name for each in tmp_path.iterdir())
    for why, path in paths.items():
        with pytest.raises(BadInputError, match="cannot write") as caught:
            write(path, b"text\n")
        assert caught.value.exit_code == 2, why
        for check in (inspect_output_path, check_replaceable):
            with pytest.raises(BadInputError, match="cannot write"):
                check(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "stays"


@both_ways
def test_full_device_raises(write: Write) -> None:
    with pytest.raises(OutputFailedError, match="No space left") as caught:
        write(Path("/dev/full"), b"text\n")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("whole", [False, True])
def test_full_disk_leaves_complete_lines_or_the_old_file(whole: bool, tmp_path: Path) -> None:
    """A file size limit simulates a full disk. It runs in a separate process, because it cannot be lifted again."""
    path = tmp_path / "out"
    path.write_text("before")
    program = f"""
import resource
from pathlib import Path
from lopa.runtime.errors import OutputFailedError
from lopa.runtime.files.output_file import OutputLines, inspect_output_path, write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (250, 250))
path = Path({str(path)!r})
try:
    if {whole}:
        write_atomically(path, b"x" * 1000)
    with OutputLines.open(inspect_output_path(path)) as lines:
        lines.begin()
        for _ in range(9):
            lines.write("x" * 99)
except OutputFailedError as error:
    print(error.received)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert os.strerror(errno.EFBIG) in done.stdout
    assert path.read_text() == ("before" if whole else ("x" * 99 + "\n") * 2)
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 250


def test_error_before_begin_keeps_old_and_removes_new_file(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before")
    with (
        pytest.raises(KeyError),
        OutputLines.open(inspect_output_path(old)),
        OutputLines.open(inspect_output_path(new)),
    ):
        raise KeyError
    assert old.read_text() == "before"
    assert not new.exists()


def test_own_descriptors_are_not_reopened(tmp_path: Path) -> None:
    """`--output /dev/stdout >> FILE` appends to FILE."""
    path = tmp_path / "out"
    path.write_text("before\n")
    program = (
        "from pathlib import Path\n"
        "from lopa.runtime.files.output_file import OutputLines, inspect_output_path, write_atomically\n"
        "with OutputLines.open(inspect_output_path(Path('/dev/stdout'))) as lines:\n"
        "    lines.begin()\n"
        "    lines.write('line')\n"
        "write_atomically(Path('/dev/fd/1'), b'whole')\n"
    )
    with path.open("ab") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert path.read_text() == "before\nline\nwhole"


def test_is_same_compares_files(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "link").symlink_to("real/new")
    (tmp_path / "file").write_text("")
    (tmp_path / "hard").hardlink_to(tmp_path / "file")

    def same(one: str, other: str) -> bool:
        return inspect_output_path(tmp_path / one).is_same(inspect_output_path(tmp_path / other))

    assert same("real/new", "folder/new")
    assert same("link", "folder/new")
    assert same("file", "hard")
    assert not same("file", "real/new")
    assert not same("real/new", "real/newer")
    null = inspect_output_path(Path("/dev/null"))
    assert not null.is_same(null), "character devices never count as the same file"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_deferred_until_the_block_ends(number: signal.Signals) -> None:
    received: list[str] = []
    before = signal.signal(number, lambda *_: received.append("signal"))
    try:
        with defer_signals():
            os.kill(os.getpid(), number)
            received.append("block")
        assert received == ["block", "signal"]
    finally:
        signal.signal(number, before)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start another process that writes lines to tmp_path / "out" and has written one."""
    (tmp_path / "out").write_text("before\n")
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from lopa.runtime.files.output_file import OutputLines, inspect_output_path\n"
        "with OutputLines.open(inspect_output_path(Path(sys.argv[1]))) as lines:\n"
        "    lines.begin(7)\n"
        "    lines.write('first')\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
        "    lines.write('last')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@both_ways
def test_file_of_another_writer_raises_under_any_name(
    write: Write, writer: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "hard").hardlink_to("out")
    for path in (tmp_path / "out", Path("out"), Path("../" + tmp_path.name, "link"), Path("hard")):
        with pytest.raises(BadInputError, match="another process is writing it"):
            write(path, b"text\n")
        with pytest.raises(BadInputError, match="another process is writing it"):
            check_replaceable(path)
    assert (tmp_path / "out").read_text() == "before\nfirst\n"
    writer.communicate()
    assert (tmp_path / "out").read_text() == "before\nfirst\nlast\n"
    write(tmp_path / "link", b"text\n")
    assert (tmp_path / "out").read_text() == "text\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["hard", "link", "out"]


@both_ways
def test_kill_releases_the_lock(write: Write, writer: "subprocess.Popen[str]", tmp_path: Path) -> None:
    writer.kill()
    writer.wait()
    write(tmp_path / "out", b"text\n")
    assert (tmp_path / "out").read_text() == "text\n"
