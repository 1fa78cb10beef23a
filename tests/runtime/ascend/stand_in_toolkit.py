"""A folder that resembles CANN's toolkit for builds: the stand-in atc and a version."""

import platform
import shlex
import sys
from pathlib import Path

VERSION = "0.0.stand-in"
_PROJECT = Path(__file__).resolve().parents[3]


def stand_in_toolkit(folder: Path, version: str | None = VERSION) -> Path:
    """Create the toolkit in `folder`, and return the folder for PATH. With `version` None it reports no version."""
    binaries = folder / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    launcher = binaries / "atc"
    path = f"{_PROJECT / 'src'}:{_PROJECT}"
    command = shlex.join([sys.executable, str(_PROJECT / "tests" / "runtime" / "ascend" / "stand_in_atc.py")])
    launcher.write_text(f'#!/bin/sh\n# The stand-in atc of the tests.\nPYTHONPATH={path} exec {command} "$@"\n')
    launcher.chmod(0o755)
    info = folder / f"{platform.machine()}-linux" / "ascend_toolkit_install.info"
    info.parent.mkdir(exist_ok=True)
    if version is None:
        info.unlink(missing_ok=True)
    else:
        info.write_text(f"package_name=Ascend-cann-toolkit\nversion={version}\narch={platform.machine()}\n")
    return binaries
