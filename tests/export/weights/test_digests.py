import hashlib
import os
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from lopa.export.weights import digests
from lopa.export.weights.digests import HashedFile, digests_in_background
from lopa.runtime.errors import BadInputError


def _write_all(file: HashedFile, data: memoryview) -> int:
    writes = 0
    while data:
        data = data[file.write(data) :]
        writes += 1
    return writes


@pytest.mark.parametrize("part", [1, 1000, 1 << 23])
def test_written_bytes_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(digests, "_WRITE_BYTES", part)
    rng = np.random.default_rng(3)
    pieces = [rng.integers(0, 256, size, dtype=np.uint8) for size in (0, 1, 999, 2500)]
    with HashedFile(tmp_path / "file") as file:
        for piece in pieces:
            assert _write_all(file, piece.data) == -(-piece.size // part)
        assert file.size == 3500
        digest = file.sha256
    content = (tmp_path / "file").read_bytes()
    assert content == b"".join(piece.tobytes() for piece in pieces)
    assert digest == hashlib.sha256(content).hexdigest()


def test_memory_can_be_reused_after_a_write(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    memory = np.empty(1 << 22, np.uint8)
    with HashedFile(tmp_path / "file") as file:
        for _ in range(5):
            memory[:] = rng.integers(0, 256, memory.size, dtype=np.uint8)
            _write_all(file, memory.data)
            memory[:] = 0
        assert file.sha256 == hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("keep")
    with pytest.raises(FileExistsError):
        HashedFile(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "keep"


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A limit of the file size simulates the full disk. Python ignores the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
    try:
        with HashedFile(tmp_path / "file") as file, pytest.raises(OSError, match="File too large"):
            _write_all(file, memoryview(bytes(2000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_digests_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_READ_BYTES", 1000)
    rng = np.random.default_rng(5)
    contents = {tmp_path / str(size): rng.bytes(size) for size in (0, 1, 999, 1000, 2500)}
    for path, content in contents.items():
        path.write_bytes(content)
    with digests_in_background(list(contents)) as background:
        found = background.result()
    assert found == {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with (
        digests_in_background([tmp_path / "nothing"]) as background,
        pytest.raises(BadInputError, match="cannot be read"),
    ):
        background.result()


def test_leaving_the_block_cancels_the_work(tmp_path: Path) -> None:
    """Use a sparse file far too large to be read in this time."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    with pytest.raises(KeyboardInterrupt), digests_in_background([path, path]) as background:
        raise KeyboardInterrupt
    assert background.done()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("source digests")]
