"""Search for ATC and the version of its toolkit. No program is run."""

import os
import platform
import shutil
from pathlib import Path

from lopa.runtime.errors import MissingBackendError

_INSTALL_INFO = "ascend_toolkit_install.info"


def atc_of_machine() -> Path:
    """Return the path of `atc`. Raises MissingBackendError if it is not on PATH."""
    found = shutil.which("atc")
    if found is None:
        raise MissingBackendError(
            "atc is not on PATH",
            expected="Ascend's CANN toolkit with the operator package of the chip",
            remedy="install both, then `source set_env.sh` of the toolkit in this shell; or use --dry-run to write a "
            "folder for a machine that has them",
        )
    return Path(found)


def cann_version(atc: Path) -> str | None:
    """Return the version in the toolkit's install file; None without such a file or line.

    The toolkit's folder comes from the environment (set_env.sh), or is one of the parent folders of `atc`.
    """
    homes = [os.environ.get(name) for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")]
    folders = [Path(home) for home in homes if home] + list(atc.resolve().parents[:4])
    for folder in folders:
        path = folder / f"{platform.machine()}-linux" / _INSTALL_INFO
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            versions = [line.partition("=")[2].strip() for line in lines if line.startswith("version=")]
            return next(iter(versions), None)
    return None
