import hashlib
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from lopa.export.weights import background_digests
from lopa.export.weights.background_digests import digests_in_background
from lopa.runtime.errors import BadInputError


def test_digests_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_digests, "_PIECE", 1000)
    rng = np.random.default_rng(5)
    contents = {tmp_path / str(size): rng.bytes(size) for size in (0, 1, 999, 1000, 2500)}
    for path, content in contents.items():
        path.write_bytes(content)
    with digests_in_background(list(contents)) as digests:
        found = digests.result()
    assert found == {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with digests_in_background([tmp_path / "nothing"]) as digests, pytest.raises(BadInputError, match="cannot be read"):
        digests.result()


def test_work_that_nobody_waits_for_is_given_up(tmp_path: Path) -> None:
    """A file far larger than could be read meanwhile; it takes no room on the disk."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    with pytest.raises(KeyboardInterrupt), digests_in_background([path, path]) as digests:
        raise KeyboardInterrupt
    assert digests.done()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("source digests")]
