"""Packages of the machine's own Debian or Ubuntu archive, unpacked into a folder without installing anything."""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lopa.runtime.errors import BadInputError, EngineFailedError, MissingBackendError


def unpack_packages(
    root: Path, packages: Sequence[str], *, suite: str, contents: str, remedy: str, with_dependencies: bool
) -> None:
    """Unpack `packages` of `suite` into the new folder `root`, where needed with what they depend on and this machine
    lacks. `contents` and `remedy` describe the packages and what to do without them, for errors.

    Raises MissingBackendError without apt, BadInputError without an archive, and EngineFailedError if apt or dpkg
    fails.
    """
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise MissingBackendError(
                f"{program} is not installed",
                expected=f"a Debian or Ubuntu system, whose archive has {contents}",
                remedy=remedy,
            )

    def run(*command: str, cwd: Path | None = None) -> str:
        completed = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
        if completed.returncode:
            raise EngineFailedError(
                f"{command[0]} ended with code {completed.returncode}: {completed.stderr.strip()[-1000:]}",
                expected=f"{contents} in the archive",
                remedy=f"check the network and apt's sources, or {remedy}",
            )
        return completed.stdout

    state = root.with_name(f"{root.name}-apt")
    for each in (state / "lists" / "partial", state / "cache" / "archives" / "partial"):
        each.mkdir(parents=True)
    form = "$(REPO_URI) $(CODENAME) $(COMPONENT)"
    targets = run("apt-get", "indextargets", "--format", form, "Created-By: Packages").splitlines()
    (state / "sources.list").write_text("".join(_sources(targets, suite, remedy)))
    options = [
        *("-o", f"Dir::Etc::sourcelist={state / 'sources.list'}", "-o", "Dir::Etc::sourceparts=-"),
        *("-o", f"Dir::State::lists={state / 'lists'}", "-o", f"Dir::Cache={state / 'cache'}"),
        *("-o", "APT::Sandbox::User=root", "-q"),
    ]
    run("apt-get", *options, "update")
    choice, names = ["--no-install-recommends", "-t", suite], list(packages)
    if with_dependencies:
        plan = run("apt-get", *options, "--simulate", *choice, "install", *packages)
        names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")] + names
    run("apt-get", *options, *choice, "download", *dict.fromkeys(names), cwd=state)
    for package in sorted(state.glob("*.deb")):
        run("dpkg", "--extract", str(package), str(root))
    shutil.rmtree(state)


def _sources(targets: list[str], suite: str, remedy: str) -> list[str]:
    """Return the lines of a list of sources: the machine's archive of its own release, and the same of `suite`."""
    release = platform.freedesktop_os_release()
    keyring, codename = f"/usr/share/keyrings/{release['ID']}-archive-keyring.gpg", release["VERSION_CODENAME"]
    for fields in map(str.split, targets):
        if fields[1:] == [codename, "main"]:
            return [f"deb [signed-by={keyring}] {fields[0]} {each} main\n" for each in dict.fromkeys((codename, suite))]
    raise BadInputError(
        f"no archive of {codename} among apt's sources",
        expected="an archive with the component main",
        remedy=f"run apt-get update, or {remedy}",
    )
