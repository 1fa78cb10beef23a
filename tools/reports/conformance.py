"""Replay every recorded prompt of published implementations, and compare the steps.

Usage: python -m tools.reports.conformance BUNDLE [DEVICE] [--devices 1,2,4] [--dialect portable] [--traces FOLDER]
       [--deduplicate-rows]

Without --traces, it replays the recordings of Dream's loops with BUNDLE, the bundle of the embedded model.

With --traces, it replays the recordings FOLDER/FAMILY/traces/*.jsonl.gz of other families (tests/reference/families,
tests/reference/moe). BUNDLE is then a folder of their bundles. A missing BUNDLE/FAMILY is exported from the checkpoint
FOLDER/FAMILY, or from that of tests/reference.

Recordings FOLDER/*.jsonl.gz fill holes (tests/reference/infill). Their bundles are BUNDLE/llada, BUNDLE/dream and
BUNDLE/dreamon-CRC, of the changed rows of the head. They are exported if they are missing.

{} in DEVICE stands for the index of a session: ascend:{} becomes ascend:0, ascend:1 and so on.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click
from tests.conformance.family_traces import (
    FAMILIES,
    MIXTURES,
    checkpoint_of,
    family_comparisons,
    family_trace_files,
    read_family_traces,
)
from tests.conformance.infill_recordings import bundle_name_of_infill, infill_comparisons, infill_files
from tests.conformance.recorded import Comparison, comparisons_of_file, trace_files
from tests.dreamon_checkpoint import checkpoint_with_expand

from lopa.bench.machine import date_now, machine_line, machine_now
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Dialect
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import LopaError
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.row_sharing import always
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.state.shared_rows import SharingTest
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.tiny import CHECKPOINT

_HEADER = (
    *("configuration", "devices", "traces", "steps", "near-ties", "near-ties of routing"),
    *("diverged at a near-tie", "mismatches"),
    "differs from the first number of devices",
)
Found = Sequence[Comparison]


_Recording = tuple[str, Bundle, Callable[[Session], Found]]
"""Name of a recorded file, its bundle, and the function that compares it with a session."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("device", default="cpu")
@click.option(
    "--devices",
    default="1",
    show_default=True,
    help="Comma-separated numbers of sessions on DEVICE that share the branches.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Maximum traces per configuration.")
@click.option("--deduplicate-rows", is_flag=True, help="Compute rows shared by several branches only once.")
@click.option(
    "--dialect", type=click.Choice(["standard", "portable"]), help="Dialect of the graph, if the bundle has two."
)
@click.option(
    "--traces",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Recordings of other families, FOLDER/FAMILY/traces/*.jsonl.gz, or of holes, FOLDER/*.jsonl.gz. BUNDLE is a "
    "folder of their bundles.",
)
def main(
    bundle: Path,
    device: str,
    devices: str,
    limit: int | None,
    dialect: Dialect | None,
    traces: Path | None,
    *,
    deduplicate_rows: bool,
) -> None:
    """Print a line per recorded configuration and number of devices, and the totals."""
    if deduplicate_rows and traces is not None:
        raise click.UsageError("--deduplicate-rows has no effect with --traces, whose loops have one branch; omit it")
    counts = _counts(devices)
    _refuse_other_fields(device)
    try:
        recordings = _recordings(bundle, traces, dialect, limit, always if deduplicate_rows else None)
        mismatches = _print_table(recordings, device, counts)
    except LopaError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(1 if mismatches else 0)


def _counts(devices: str) -> list[int]:
    """Return the numbers of sessions. Raises UsageError for anything but numbers of at least 1."""
    parts = [part.strip() for part in devices.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.UsageError(f"--devices {devices!r}: pass comma-separated numbers of at least 1, such as 1,2,4")
    return list(map(int, parts))


def _refuse_other_fields(device: str) -> None:
    try:
        device.format(0)
    except (ValueError, LookupError, AttributeError) as error:
        raise click.UsageError(
            f"DEVICE {device!r}: {{}} is the only field that it can have, such as cuda:{{}}"
        ) from error


def _print_table(recordings: Iterator[_Recording], device: str, counts: Sequence[int]) -> int:
    """Print the table, and return the number of mismatches."""
    click.echo(
        f"{machine_line(machine_now(), date_now())}\n"
    )  # before the table, since logs may keep only the last lines
    click.echo("| " + " | ".join(_HEADER) + " |\n|" + "---|" * len(_HEADER))
    sums = {count: [0] * (len(_HEADER) - 2) for count in counts}
    for name, bundle, compared in recordings:
        first: Found = []
        for count in counts:
            session = _session(bundle, device, count)
            found = compared(session)
            session.close()
            first = first or found
            row = _row(found, first)
            sums[count] = [a + b for a, b in zip(sums[count], row, strict=True)]
            click.echo(f"| {name} | {count} | " + " | ".join(map(str, row)) + " |")
            for each in found:
                if each.mismatch is not None:
                    click.echo(f"{name} on {count}: {each.mismatch}", err=True)
                if each.named is not None:
                    click.echo(f"{name} on {count}: diverged at a near-tie: {each.named}", err=True)
    for count in counts:
        click.echo(f"| all | {count} | " + " | ".join(map(str, sums[count])) + " |")
    return sum(row[-2] for row in sums.values())


def _recordings(
    path: Path, traces: Path | None, dialect: Dialect | None, limit: int | None, sharing: SharingTest | None
) -> Iterator[_Recording]:
    if traces is None:
        bundle = _open(path, dialect)
        for file in trace_files():
            compared = partial(comparisons_of_file, file, manifest=bundle.manifest, limit=limit, sharing=sharing)
            yield file.name.split(".")[0], bundle, compared
        return
    files, holes = family_trace_files(traces), infill_files(traces)
    if not (files or holes):
        raise click.UsageError(f"{traces} has no FAMILY/traces/*.jsonl.gz and no *.jsonl.gz")
    empty = [file for file in (*files, *holes) if not read_family_traces(file)[1]]
    if empty:
        raise click.UsageError(
            f"{', '.join(map(str, empty))}: no trace behind the first line; record some, or remove it"
        )
    for file in holes:
        bundle = _open(_infill_bundle(path, file), dialect)
        yield file.name.split(".")[0], bundle, partial(_fill, file, bundle, limit)
    for file in files:
        family = checkpoint_of(file)
        bundle = _open(_export_if_missing(path / family.name, family), dialect)
        compared = partial(family_comparisons, file, manifest=bundle.manifest, limit=limit)
        yield f"{family.name} {file.name.split('.')[0]}", bundle, compared


def _fill(file: Path, bundle: Bundle, limit: int | None, session: Session) -> Found:
    return infill_comparisons(file, Decoder(bundle, session, Tokenizer.open(bundle)), limit=limit)


def _infill_bundle(folder: Path, file: Path) -> Path:
    """Return the bundle in `folder` of the model of a recording of holes, exported if it does not exist."""
    path = folder / bundle_name_of_infill(file)
    if path.exists() or not path.name.startswith("dreamon"):
        return _export_if_missing(path, CHECKPOINT if path.name == "dream" else FAMILIES / path.name)
    with tempfile.TemporaryDirectory() as made:
        head_rows = read_family_traces(file)[0]["head_rows"]
        return _export_if_missing(path, checkpoint_with_expand(Path(made) / "checkpoint", head_rows))


def _open(path: Path, dialect: Dialect | None) -> Bundle:
    return Bundle.open(path) if dialect is None else Bundle.open(path).with_dialect(dialect)


def _export_if_missing(path: Path, family: Path) -> Path:
    """Return the bundle `path`, exported from the checkpoint `family` if it does not exist."""
    if not path.exists():
        from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint

        folders = (family, FAMILIES / family.name, MIXTURES / family.name)
        checkpoint = next((folder for folder in folders if (folder / "config.json").exists()), family)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Replaying sampled tokens needs the logits.
        bundle_from_checkpoint(checkpoint, path, dialects=("standard", "portable"), with_logits=True)
    return path


def _session(bundle: Bundle, device: str, count: int) -> Session:
    sessions = [open_session(bundle, device.format(number), threads=1) for number in range(count)]
    return sessions[0] if count == 1 else BranchParallelSession(sessions)


def _row(found: Found, first: Found) -> list[int]:
    return [
        len(found),
        sum(each.steps for each in found),
        sum(each.near_ties for each in found),
        sum(each.route_ties for each in found),
        sum(each.diverged_at is not None for each in found),
        sum(each.mismatch is not None for each in found),
        sum(each.decided != other.decided for each, other in zip(found, first, strict=True)),
    ]


if __name__ == "__main__":
    main()
