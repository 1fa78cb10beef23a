"""The two archives of a release, made of a folder of files: a wheel and a source archive, of every build the same."""

import os
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from lopa.runtime.errors import CheckFailedError
from tools.release.archive import settle_archive
from tools.release.tree import settle

_PROGRAM = "import setuptools.build_meta as backend, sys; getattr(backend, sys.argv[1])(sys.argv[2])"
_KEPT = ("PATH", "HOME", "TMPDIR")
_TOLD = 2000


@dataclass(frozen=True)
class Archives:
    """What is given away."""

    wheel: Path
    sdist: Path

    def digests(self) -> dict[str, str]:
        """SHA-256 by file name."""
        return {path.name: sha256(path.read_bytes()).hexdigest() for path in (self.wheel, self.sdist)}


def archives_of_tree(tree: Path, output: Path, *, epoch: int, python: Path) -> Archives:
    """Build both into `output`, the wheel from the source archive, which is so seen to be whole.

    `python` has setuptools, whose version is a part of what is built. `tree` is changed: times, modes, what setuptools
    leaves. Raises CheckFailedError where setuptools fails.
    """
    output.mkdir(parents=True, exist_ok=True)
    settle(tree, epoch)
    sdist = _built("build_sdist", tree, output, epoch, python)
    settle_archive(sdist, epoch)
    with TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        settle(unpacked, epoch)
        wheel = _built("build_wheel", unpacked, output, epoch, python)
    return Archives(wheel, sdist)


def check_equal(first: Archives, second: Archives) -> None:
    """Raise CheckFailedError unless both builds made the same bytes."""
    other = second.digests()
    differ = [name for name, digest in first.digests().items() if other.get(name) != digest]
    if differ:
        raise CheckFailedError(
            f"two builds of one commit differ: {', '.join(differ)}",
            expected="the same bytes",
            remedy="compare both with diffoscope; a file that is made during the build is the usual reason",
        )


def _built(hook: str, tree: Path, output: Path, epoch: int, python: Path) -> Path:
    """What a hook of setuptools adds to `output`."""
    before = set(output.iterdir())
    done = subprocess.run(
        [python, "-c", _PROGRAM, hook, output.resolve()],
        cwd=tree,
        env=_environment(os.environ, epoch),
        umask=0o022,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CheckFailedError(
            f"setuptools' {hook}: {done.stdout[-_TOLD:]}", expected="an archive", remedy="see what it said"
        )
    (made,) = set(output.iterdir()) - before
    return made


def _environment(here: Mapping[str, str], epoch: int) -> dict[str, str]:
    """What a build sees of this machine: where programs are, and one date for everything."""
    kept = {name: here[name] for name in _KEPT if name in here}
    return {**kept, "SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}
