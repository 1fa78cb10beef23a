"""A source archive without the traces of the machine that packed it."""

import gzip
import tarfile
from io import BytesIO
from pathlib import Path


def settle_archive(path: Path, epoch: int) -> None:
    """Pack a .tar.gz again: members by name, the time `epoch`, no owner, modes 644 or 755, no name of its own.

    setuptools takes times from files, owners from the machine and the order of folders as it meets them.
    """
    packed = BytesIO()
    with (
        tarfile.open(path) as old,
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            new.addfile(_settled(member, epoch), old.extractfile(member) if member.isfile() else None)
    path.write_bytes(packed.getvalue())


def _settled(member: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    member.mtime = epoch
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    member.pax_headers = {}
    return member
