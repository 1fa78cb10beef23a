"""Measure exports against a plain copy of the same checkpoint: seconds, and memory of the whole process tree.

Usage: python -m tools.measure_export CHECKPOINT PLACE --export "--dtype fp16" --export "--dtype fp16 --lora LORA"

For each --export: copies CHECKPOINT to PLACE with `cp`, removes the copy, runs `lopa-export onnx CHECKPOINT -o ..` with
the options given, removes the bundle, and prints a row of a Markdown table. Nothing is done about what the system keeps
in memory of files, for either. Needs Linux, whose /proc says how much memory a process has.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
_INTERVAL = 0.04
"""Seconds between two looks at the memory."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_COLUMNS = ("export", "load before", "copy s", "export s", "2 copies + 60 s", "tree's peak GB", "VmHWM GB", "bundle GB")
HEADER = (f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS))


@dataclass(frozen=True)
class MeasuredRun:
    """One command that ended well."""

    seconds: float
    peak_tree: int
    """Bytes: the greatest sum, over the command and all processes below it, of resident memory at one look."""
    peak_command: int
    """Bytes: VmHWM of the command's own process at the last look, which the system keeps without gaps."""


@dataclass(frozen=True)
class MeasuredExport:
    """One row of the table."""

    options: str
    load: float
    """Of the last minute, before: how many processes wanted to run on this machine."""
    copy_seconds: float
    run: MeasuredRun
    bundle_size: int
    """Bytes of all its files."""

    @property
    def row(self) -> str:
        """In Markdown, under HEADER."""
        cells = (
            f"`{self.options}`",
            f"{self.load:.1f}",
            f"{self.copy_seconds:.1f}",
            f"{self.run.seconds:.1f}",
            f"{2 * self.copy_seconds + 60:.1f}",
            f"{self.run.peak_tree / 1e9:.2f}",
            f"{self.run.peak_command / 1e9:.2f}",
            f"{self.bundle_size / 1e9:.2f}",
        )
        return f"| {' | '.join(cells)} |"


def measured_export(checkpoint: Path, place: Path, options: str) -> MeasuredExport:
    """Copy `checkpoint` into the folder `place`, export it there with `options`, and leave neither behind.

    Raises subprocess.CalledProcessError when one of them fails.
    """
    copy, bundle = place / "copy", place / "bundle"
    load = os.getloadavg()[0]
    with _removed(copy):
        copied = measured_run(["cp", "-r", str(checkpoint), str(copy)])
    command = [sys.executable, "-m", "lopa.cli.main", "onnx", str(checkpoint), "-o", str(bundle), *shlex.split(options)]
    with _removed(bundle):
        run = measured_run(command)
        size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    return MeasuredExport(options, load, copied.seconds, run, size)


def measured_run(command: list[str]) -> MeasuredRun:
    """Run `command` to its end. Raises subprocess.CalledProcessError when it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    start = time.perf_counter()
    peak_tree = peak_command = 0
    with subprocess.Popen(command, env=environment) as process:
        while process.poll() is None:
            peak_tree = max(peak_tree, sum(resident_bytes(number) for number in tree_of_process(process.pid)))
            peak_command = max(peak_command, _high_water_mark(process.pid))
            time.sleep(_INTERVAL)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return MeasuredRun(seconds, peak_tree, peak_command)


def tree_of_process(process: int) -> Iterator[int]:
    """The process and all that descend from it, those that end meanwhile left out."""
    yield process
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in _text(children).split():
            yield from tree_of_process(int(child))


def resident_bytes(process: int) -> int:
    """Memory of the process that is in RAM, mapped files included; 0 for one that has ended."""
    fields = _text(Path(f"/proc/{process}/statm")).split()
    return int(fields[1]) * _PAGE if fields else 0


def _high_water_mark(process: int) -> int:
    for line in _text(Path(f"/proc/{process}/status")).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _text(path: Path) -> str:
    """Empty for a process that has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextmanager
def _removed(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("place", type=click.Path(path_type=Path))
@click.option("--export", "exports", multiple=True, required=True, metavar="OPTIONS", help="Of lopa-export onnx.")
def main(checkpoint: Path, place: Path, exports: tuple[str, ...]) -> None:
    """Measure one export of CHECKPOINT for each --export, in the new folder PLACE."""
    place.mkdir(parents=True)
    try:
        click.echo("\n".join(HEADER))
        for options in exports:
            click.echo(measured_export(checkpoint, place, options).row)
    except subprocess.CalledProcessError as error:
        raise click.ClickException(f"exit code {error.returncode} of {shlex.join(error.cmd)}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
