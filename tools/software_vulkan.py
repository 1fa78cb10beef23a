"""Unpack a Vulkan driver for processors (lavapipe, of Mesa) into a folder, without installing anything.

Usage: python -m tools.software_vulkan FOLDER

The packages come from the machine's own Debian or Ubuntu archive. Debian 12's Mesa is too old for WebGPU, so backports
are preferred. FOLDER/environment then has the variables for a shell: set -a; . FOLDER/environment; set +a
"""

import json
import platform
from pathlib import Path

import click

from lopa.export.staging import Product, staged_folder
from tools.debian_packages import unpack_packages
from tools.report import exit_on_error

_DRIVER = Product("driver folder", "environment")
_PACKAGES = ("mesa-vulkan-drivers", "libvulkan1")
_ICD = "usr/share/vulkan/icd.d/lvp_icd.json"
"""Description of the driver for Vulkan's loader, in newer packages with the architecture in its name."""
_ALLOW_SOFTWARE = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"


def unpack_driver(folder: Path) -> Path:
    """Unpack the driver and its libraries into the new folder `folder`. Return the file with the environment.

    Raises as `unpack_packages` does.
    """
    folder = folder.absolute()
    with staged_folder(folder, overwrite=True, product=_DRIVER) as staged:
        root = staged / "root"
        unpack_packages(
            root,
            _PACKAGES,
            suite=f"{platform.freedesktop_os_release()['VERSION_CODENAME']}-backports",
            contents="Mesa's Vulkan drivers",
            remedy="install a Vulkan driver by the system's own means",
            with_dependencies=True,
        )
        (library,) = root.glob("usr/lib/*/libvulkan_lvp.so")
        final = folder / library.parent.relative_to(staged)
        icd = next(iter((root / _ICD).parent.glob("lvp_icd*.json")))
        driver = json.loads(icd.read_text())
        driver["ICD"]["library_path"] = str(final / library.name)
        icd.write_text(json.dumps(driver))
        (staged / "environment").write_text(
            f"VK_ICD_FILENAMES='{folder / icd.relative_to(staged)}'\nLD_LIBRARY_PATH='{final}'\n{_ALLOW_SOFTWARE}=1\n"
        )
    return folder / "environment"


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Unpack the driver."""
    click.echo(f"Use it by: set -a; . {unpack_driver(folder)}; set +a")


if __name__ == "__main__":
    with exit_on_error():
        main()
