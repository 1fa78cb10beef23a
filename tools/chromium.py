"""Unpack Chromium and the libraries that it needs into a folder, without installing anything.

Usage: python -m tools.chromium FOLDER

The packages come from the machine's own Debian archive. FOLDER/chromium then starts the browser.
"""

import platform
from pathlib import Path

import click

from lopa.export.staging import Product, staged_folder
from lopa.runtime.errors import MissingBackendError
from tools.debian_packages import unpack_packages
from tools.report import exit_on_error

_REMEDY = "install Chromium by the system's own means"
_BROWSER = Product("browser folder", "chromium")
_PROGRAM = "usr/lib/chromium/chromium"
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""
_SCRIPT = """#!/bin/sh
export LD_LIBRARY_PATH='{libraries}' FONTCONFIG_FILE='{fonts}'
exec '{program}' "$@"
"""


def unpack_chromium(folder: Path) -> Path:
    """Unpack Chromium into the new folder `folder`. Return the program that starts it.

    Raises as `unpack_packages` does, and MissingBackendError if the archive's package has no browser.
    """
    folder = folder.absolute()
    with staged_folder(folder, overwrite=True, product=_BROWSER) as staged:
        root = staged / "root"
        unpack_packages(
            root,
            ["chromium", "fonts-dejavu-core"],
            suite=platform.freedesktop_os_release()["VERSION_CODENAME"],
            contents="chromium",
            remedy=_REMEDY,
            with_dependencies=True,
        )
        if not (root / _PROGRAM).is_file():
            raise MissingBackendError(
                "the package chromium of this system has no browser",
                expected=f"{_PROGRAM}, as in Debian's package; Ubuntu's installs a snap",
                remedy=_REMEDY,
            )
        libraries = sorted({path.parent for path in root.glob("**/*-linux-gnu/**/*.so*")})
        final = folder / "root"
        fonts = staged / "fonts.conf"
        fonts.write_text(_FONTS.format(folder=final / "usr" / "share" / "fonts"))
        program = staged / "chromium"
        program.write_text(
            _SCRIPT.format(
                libraries=":".join(str(folder / path.relative_to(staged)) for path in libraries),
                fonts=folder / fonts.name,
                program=final / _PROGRAM,
            )
        )
        program.chmod(0o755)
    return folder / program.name


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Unpack the browser."""
    click.echo(f"Use it by: PATH={unpack_chromium(folder).parent}:$PATH")


if __name__ == "__main__":
    with exit_on_error():
        main()
