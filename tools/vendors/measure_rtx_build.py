"""Measure builds with TensorRT for RTX: seconds, memory of the process tree in each part of a build, size of the plan.

Usage: python -m tools.vendors.measure_rtx_build BUNDLE OUT.json --build "" --build "--fp8"

For each --build: runs `lopa-export tensorrt BUNDLE --rtx` with the options given, and removes the engine. No GPU is
needed; BUNDLE has a gears.json. What counts as memory: anonymous pages, which only the process can give back, and pages
of files that are mapped, which the system can take away again. Needs Linux.
"""

import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from lopa.bench.machine import date_now, machine_now
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.engine_file import ENGINES_FOLDER
from lopa.runtime.tensorrt.manifest import PLAN_NAME
from tools.measure_export import ROOT, tree_of_process

_INTERVAL = 0.04
"""Seconds between two looks at the memory."""
_PHASE = "TensorRT: "
"""Begins a line of the command on standard error when a phase of the build begins."""


@dataclass
class Part:
    """One part of a build. Memory is in bytes, that of the whole tree; files that two processes map count twice."""

    name: str
    start: float
    """Seconds after the command's."""
    anonymous: int = 0
    """At the look at it at which it had the most memory."""
    mapped: int = 0
    """Of files, at the same look."""
    last: int = 0
    """Both together at the last look."""

    @property
    def peak(self) -> int:
        """Both together."""
        return self.anonymous + self.mapped

    def look(self, anonymous: int, mapped: int) -> None:
        """Take a look into account; one at a process that has just ended has nothing."""
        if not anonymous:
            return
        self.last = anonymous + mapped
        if self.last > self.peak:
            self.anonymous, self.mapped = anonymous, mapped


@dataclass(frozen=True)
class MeasuredBuild:
    """One command that ended well. Memory is in bytes."""

    options: str
    engine: str
    """Its folder, which has the library's version."""
    load: float
    """Of the last minute, before: how many processes wanted to run on this machine."""
    seconds: float
    processor_seconds: float
    """Of all cores, the system's work for the command included."""
    parts: list[Part]
    network: int
    """All memory when the network was parsed, and the weights file, which the build maps."""
    plan: int
    peak: int
    beside: int
    """Of the peak, what is neither network nor plan."""


def measured_build(bundle: Path, options: str) -> MeasuredBuild:
    """Build for `bundle`, measure, and remove the engine. Raises subprocess.CalledProcessError when the build fails."""
    opened = Bundle.open(bundle)
    command = [sys.executable, "-m", "lopa.cli.main", "tensorrt", str(bundle), "--rtx", *shlex.split(options)]
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    load, used, start = os.getloadavg()[0], _processor_seconds(), time.perf_counter()
    with new_folders_removed(opened.path / ENGINES_FOLDER) as new_folders:
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            parts = watched_parts(process, new_folders)
        seconds = time.perf_counter() - start
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        (engine,) = new_folders()
        size = (engine / PLAN_NAME).stat().st_size
    network, peak = parts[0].last + opened.weights.stat().st_size, max(part.peak for part in parts)
    return MeasuredBuild(
        options,
        engine.name,
        load,
        seconds,
        _processor_seconds() - used,
        parts,
        network,
        size,
        peak,
        peak - network - size,
    )


def watched_parts(process: subprocess.Popen[str], new_folders: Callable[[], list[Path]]) -> list[Part]:
    """Look at the process, which has just started, until it ends."""
    start = time.perf_counter()
    builds = threading.Event()
    told = threading.Thread(target=_shown_until_end, args=(process, builds))
    told.start()
    parts = [Part("until the network is parsed", 0.0)]
    while process.poll() is None:
        seconds = time.perf_counter() - start
        if len(parts) == 1 and builds.is_set():
            parts.append(Part("building", seconds))
        if len(parts) == 2 and any(map(_has_plan, new_folders())):
            parts.append(Part("writing", seconds))
        parts[-1].look(*_memory_of_tree(process.pid))
        time.sleep(_INTERVAL)
    told.join()
    return parts


def _has_plan(folder: Path) -> bool:
    """Or the beginning of one."""
    try:
        return (folder / PLAN_NAME).stat().st_size > 0
    except FileNotFoundError:
        return False


def _shown_until_end(process: subprocess.Popen[str], builds: threading.Event) -> None:
    """Pass on what the command says on standard error, and tell when it says that the build has begun."""
    assert process.stderr is not None
    for line in process.stderr:
        sys.stderr.write(line)
        if line.startswith(_PHASE):
            builds.set()


def _memory_of_tree(process: int) -> tuple[int, int]:
    """Anonymous and mapped bytes."""
    looks = [_memory(number) for number in tree_of_process(process)]
    return sum(anonymous for anonymous, _ in looks), sum(mapped for _, mapped in looks)


def _memory(process: int) -> tuple[int, int]:
    """Nothing for a process that has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    sizes = {name: 1024 * int(size) for name, size in re.findall(r"^(Rss\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    return sizes.get("RssAnon", 0), sizes.get("RssFile", 0) + sizes.get("RssShmem", 0)


def _processor_seconds() -> float:
    """Of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def new_folders_removed(parent: Path) -> Iterator[Callable[[], list[Path]]]:
    """Removes in the end what the block put into `parent`; in the block, a function that lists it."""

    def folders() -> set[Path]:
        return {path for path in parent.glob("*") if path.is_dir()}

    before = folders()
    try:
        yield lambda: list(folders() - before)
    finally:
        for folder in folders() - before:
            shutil.rmtree(folder)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--build", "builds", multiple=True, required=True, metavar="OPTIONS", help="Of lopa-export tensorrt.")
def main(bundle: Path, out: Path, builds: tuple[str, ...]) -> None:
    """Build once for each --build, and write what was measured to OUT."""
    try:
        machine, date = machine_now(), date_now()
        measured = [measured_build(bundle, options) for options in builds]
    except subprocess.CalledProcessError as error:
        raise click.ClickException(f"exit code {error.returncode} of {shlex.join(error.cmd)}") from error
    report = {"machine": machine, "date": date, "builds": measured}
    out.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


if __name__ == "__main__":
    main()
