"""Checkpoints and adapters that are named by an id of the Hugging Face Hub."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from lopa.cli.program.verbosity import quiet
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import HubSource, Origin
from lopa.runtime.errors import BadInputError
from lopa.runtime.hub.hub_id import COMMIT, HubId, hub_id_from_path
from lopa.runtime.hub.snapshot import ADAPTER_FILES, CHECKPOINT_FILES, download_snapshot


@dataclass(frozen=True)
class LocalSources:
    """Folders of a checkpoint and an adapter, and where they were downloaded from."""

    checkpoint: Path
    lora: Path | None
    checkpoint_hub: HubSource | None = None
    adapter_hub: HubSource | None = None


def local_sources(
    checkpoint: Path, lora: Path | None, output: Path, *, revision: str | None, locked: bool
) -> LocalSources:
    """Return the folders of a checkpoint and an adapter, downloaded if they are ids. Existing paths are used as given.

    `revision` is the checkpoint's. With `locked`, revisions must be commits: those of an existing bundle at `output`,
    or given as 40 digits. Raises BadInputError otherwise, as download_snapshot does, and for a revision of a folder.
    """
    ids = [None if path is None or path.exists() else hub_id_from_path(path) for path in (checkpoint, lora)]
    own, adapter = ids
    if revision is not None:
        if own is None:
            raise click.UsageError("--revision needs a CHECKPOINT on the Hugging Face Hub, such as ORG/NAME")
        if own.revision not in (None, revision):
            raise click.UsageError(f"two revisions of the checkpoint: {own.revision} and --revision {revision}")
        own = replace(own, revision=revision)
    if locked and own is None and adapter is None:
        raise click.UsageError("--locked needs a CHECKPOINT or --lora on the Hugging Face Hub, such as ORG/NAME")
    origin = _recorded_origin(output) if locked else None
    folder, source = checkpoint, None
    if own is not None:
        recorded = None if origin is None else origin.checkpoint_hub
        folder, source = _downloaded(own, CHECKPOINT_FILES, recorded, locked=locked)
    lora_source = None
    if adapter is not None:
        recorded = None if origin is None else origin.adapter_hub
        lora, lora_source = _downloaded(adapter, ADAPTER_FILES, recorded, locked=locked)
    return LocalSources(folder, lora, source, lora_source)


def _recorded_origin(output: Path) -> Origin | None:
    try:
        return Bundle.open(output).manifest.origin
    except BadInputError:
        return None


def _downloaded(
    hub_id: HubId, patterns: Sequence[str], recorded: HubSource | None, *, locked: bool
) -> tuple[Path, HubSource]:
    if recorded is not None and recorded.repository != hub_id.repository:
        recorded = None
    if locked and recorded is None and (hub_id.revision is None or not COMMIT.fullmatch(hub_id.revision)):
        raise BadInputError(
            f"--locked, but {hub_id} names no commit",
            expected="a commit of 40 digits, or a bundle at --output that records one",
            remedy=f"give the commit: {hub_id.repository}@COMMIT, or omit --locked",
        )
    if recorded is not None and hub_id.revision is None:
        hub_id = replace(hub_id, revision=recorded.commit)
    snapshot = download_snapshot(hub_id, patterns, quiet=quiet())
    if recorded is not None and snapshot.commit != recorded.commit:
        raise BadInputError(
            f"{hub_id} is commit {snapshot.commit} now, and was {recorded.commit} when the bundle was exported",
            expected="the recorded commit, because of --locked",
            remedy=f"use {hub_id.repository}@{recorded.commit}, or omit --locked to take the new one",
        )
    return snapshot.path, HubSource(repository=snapshot.repository, commit=snapshot.commit)
