"""A folder with the files of a commit, alike wherever and whenever it is made. Knows git's archives, no package."""

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path


def tree_of_commit(checkout: Path, commit: str, folder: Path) -> None:
    """Fill `folder` with the files of the commit, and with nothing that lies beside them in the checkout."""
    command: list[str | Path] = ["git", "-C", checkout, "archive", "--format=tar", commit]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def settle(folder: Path, epoch: int) -> None:
    """Give every file and folder the modes 644 or 755 and the time `epoch`: builds copy both into what they make."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)
