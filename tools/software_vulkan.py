"""Unpack a Vulkan driver for processors (lavapipe, of Mesa) into a folder, without installing anything.

Usage: python -m tools.software_vulkan FOLDER

The packages come from the machine's own Debian or Ubuntu archive. Debian 12's Mesa is too old for WebGPU, so backports
are preferred. FOLDER/environment then has the variables for a shell: set -a; . FOLDER/environment; set +a
"""

import json
import platform
import shutil
import subprocess
from pathlib import Path

import click

from lopa.export.staging import Product, staged_folder
from lopa.runtime.errors import BadInputError, EngineFailedError, MissingBackendError
from tools.cli_errors import exit_on_error

_DRIVER = Product("driver folder", "environment")
_PACKAGES = ("mesa-vulkan-drivers", "libvulkan1")
_ICD = "usr/share/vulkan/icd.d/lvp_icd.json"
"""Description of the driver for Vulkan's loader, in newer packages with the architecture in its name."""
_ALLOW_SOFTWARE = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"


def unpack_driver(folder: Path) -> Path:
    """Unpack the driver and its libraries into the new folder `folder`. Return the file with the environment.

    Raises MissingBackendError without apt, and EngineFailedError if apt or dpkg fails.
    """
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise MissingBackendError(
                f"{program} is not installed",
                expected="a Debian or Ubuntu system, whose archive has Mesa's Vulkan drivers",
                remedy="install a Vulkan driver by the system's own means",
            )
    folder = folder.absolute()
    with staged_folder(folder, overwrite=True, product=_DRIVER) as staged:
        root, state = staged / "root", staged / "apt"
        for each in (state / "lists" / "partial", state / "cache" / "archives" / "partial"):
            each.mkdir(parents=True)
        codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
        suite = f"{codename}-backports"
        (state / "sources.list").write_text("".join(_archives(codename, suite)))
        options = [
            *("-o", f"Dir::Etc::sourcelist={state / 'sources.list'}", "-o", "Dir::Etc::sourceparts=-"),
            *("-o", f"Dir::State::lists={state / 'lists'}", "-o", f"Dir::Cache={state / 'cache'}"),
            *("-o", "APT::Sandbox::User=root", "-q"),
        ]
        _run("apt-get", *options, "update")
        choice = ["--no-install-recommends", "-t", suite]
        plan = _run("apt-get", *options, "--simulate", *choice, "install", *_PACKAGES)
        names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
        _run("apt-get", *options, *choice, "download", *dict.fromkeys((*names, *_PACKAGES)), cwd=state)
        for package in sorted(state.glob("*.deb")):
            _run("dpkg", "--extract", str(package), str(root))
        shutil.rmtree(state)
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


def _archives(codename: str, suite: str) -> list[str]:
    """Return the lines of a list of sources: the machine's archive of `codename`, and the same of `suite`."""
    form = "$(REPO_URI) $(CODENAME) $(COMPONENT)"
    keyring = Path(f"/usr/share/keyrings/{platform.freedesktop_os_release()['ID']}-archive-keyring.gpg")
    found = _run("apt-get", "indextargets", "--format", form, "Created-By: Packages").splitlines()
    for fields in map(str.split, found):
        if fields[1:] == [codename, "main"]:
            return [f"deb [signed-by={keyring}] {fields[0]} {each} main\n" for each in (codename, suite)]
    raise BadInputError(
        f"no archive of {codename} among apt's sources",
        expected="an archive with the component main",
        remedy="run apt-get update, or install a Vulkan driver by the system's own means",
    )


def _run(*command: str, cwd: Path | None = None) -> str:
    completed = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise EngineFailedError(
            f"{command[0]} ended with code {completed.returncode}: {completed.stderr.strip()[-1000:]}",
            expected="Mesa's Vulkan drivers in the archive",
            remedy="check the network and apt's sources, or install a Vulkan driver by the system's own means",
        )
    return completed.stdout


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Unpack the driver."""
    click.echo(f"Use it by: set -a; . {unpack_driver(folder)}; set +a")


if __name__ == "__main__":
    with exit_on_error():
        main()
