"""Unpack the C++ headers of ONNX Runtime and of nlohmann's JSON library into a folder, without installing anything.

Usage: python -m tools.onnxruntime_headers FOLDER

They come from Debian's packages libonnxruntime-dev and nlohmann-json3-dev in sid, since Debian 12 has no
libonnxruntime-dev. Python wheels have no headers.
"""

import shutil
from pathlib import Path

import click

from lopa.export.staging import Product, staged_folder
from tools.debian_packages import unpack_packages
from tools.report import exit_on_error

_HEADERS = Product("header folder", "include/onnxruntime_cxx_api.h")


def unpack_headers(folder: Path) -> Path:
    """Unpack the headers into the new folder `folder`. Return the folder for a compiler's include path.

    Raises as `unpack_packages` does.
    """
    with staged_folder(folder, overwrite=True, product=_HEADERS) as staged:
        root = staged / "root"
        unpack_packages(
            root,
            ["libonnxruntime-dev", "nlohmann-json3-dev"],
            suite="sid",
            contents="libonnxruntime-dev and nlohmann-json3-dev",
            remedy="put the headers of ONNX Runtime's release archive and nlohmann/json.hpp into a folder, and set"
            " ONNXRUNTIME_HEADERS to it",
            with_dependencies=False,
        )
        (root / "usr" / "include" / "onnxruntime").rename(staged / "include")
        (root / "usr" / "include" / "nlohmann").rename(staged / "include" / "nlohmann")
        shutil.rmtree(root)  # its links to the library lead nowhere
    return folder / "include"


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Unpack the headers."""
    click.echo(f"Use them by: ONNXRUNTIME_HEADERS={unpack_headers(folder)}")


if __name__ == "__main__":
    with exit_on_error():
        main()
