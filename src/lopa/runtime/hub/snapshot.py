"""Download of the needed files of a repository at one commit, with huggingface_hub.

Files go to the Hub's cache and are shared with other programs. A file that is complete there is not downloaded again.
An interrupted download continues within the same process only, as huggingface_hub does it. The content of every new
file is compared with its digest, which huggingface_hub does not do.
"""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.runtime.errors import BadInputError, raise_if_from_handler
from lopa.runtime.extra import extra_needed
from lopa.runtime.hub.checked_api import DIGEST, checked_api
from lopa.runtime.hub.hub_id import COMMIT, HubId

CHECKPOINT_FILES = ("*.json", "*.txt", "*.jinja", "model*.safetensors")
"""Patterns of a checkpoint's files: weights, configuration and tokenizer. Pickles and code are not among them."""
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""Names of an adapter's files."""
_SUBFOLDERS = ("*/*",)
_MODULES = {"huggingface_hub"}
_GIB = 2**30


@dataclass(frozen=True)
class Snapshot:
    """Files of a repository at one commit."""

    path: Path
    repository: str
    commit: str
    """Full hash of the commit."""


def download_snapshot(
    hub_id: HubId, patterns: Sequence[str], ignored: Sequence[str] = _SUBFOLDERS, *, quiet: bool = False
) -> Snapshot:
    """Return the files of `hub_id` that match `patterns` and not `ignored`, from the cache as far as they are there.

    `quiet` hides the progress bars. Raises BadInputError for a repository, revision or token that the Hub does not
    accept, and for files that are neither in the cache nor reachable. Raises it also for a full disk and for a file
    with another digest than the Hub's. Raises MissingBackendError without huggingface_hub.
    """
    with extra_needed("hub", _MODULES, "huggingface_hub"):
        from huggingface_hub import constants
        from huggingface_hub.file_download import _cache_commit_hash_for_specific_revision
        from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    arguments: dict[str, Any] = {
        "repo_id": hub_id.repository,
        "allow_patterns": list(patterns),
        "ignore_patterns": list(ignored),
    }
    hides = quiet and not are_progress_bars_disabled()
    if hides:
        disable_progress_bars()
    try:
        with hub_errors(hub_id):
            new: list[str] = []
            commit = _commit_on_hub(hub_id)
            if commit is None:
                cached = checked_api().snapshot_download(**arguments, revision=hub_id.revision, local_files_only=True)
                path = Path(cached)
            else:
                api, arguments = checked_api(commit), {**arguments, "revision": commit}
                known = _check_tree(api, hub_id.repository, commit)
                planned: Any = api.snapshot_download(**arguments, dry_run=True)
                needed = [each for each in planned if each.will_download]
                _check_disk(hub_id, sum(each.file_size or 0 for each in needed), Path(constants.HF_HUB_CACHE))
                new = [each.filename for each in needed]
                path = Path(api.snapshot_download(**arguments, local_files_only=not known))
                with suppress(OSError):  # a read-only cache
                    revision = hub_id.revision or constants.DEFAULT_REVISION
                    _cache_commit_hash_for_specific_revision(str(path.parent.parent), revision, commit)
    finally:
        if hides:
            enable_progress_bars()
    _check_digests(hub_id, path, new)
    return Snapshot(path, hub_id.repository, path.name)


def _commit_on_hub(hub_id: HubId) -> str | None:
    """Return the commit of the revision, or None if the Hub cannot be reached. The cache may suffice then."""
    from httpx2 import ConnectError, TimeoutException
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        commit = checked_api().model_info(hub_id.repository, revision=hub_id.revision).sha
    except (ConnectError, TimeoutException, OfflineModeIsEnabled):
        return None
    requested = hub_id.revision if COMMIT.fullmatch(hub_id.revision or "") else commit
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit) or commit != requested:
        raise ValueError(f"the revision has the commit {commit!r:.100}")
    return commit


def _check_tree(api: Any, repository: str, commit: str) -> bool:
    """Check the digests of a commit's files, by which the library names them, and keep them where it reads them first.

    Returns whether they are kept, which a read-only cache does not do. Raises ValueError for what is no digest.
    """
    from huggingface_hub import constants
    from huggingface_hub._tree_cache import TreeCacheEntry, read_tree_cache, write_tree_cache
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.hf_api import RepoFile

    cache = Path(constants.HF_HUB_CACHE).expanduser().resolve()
    folder = str(cache / repo_folder_name(repo_id=repository, repo_type="model"))
    kept = read_tree_cache(folder, commit)
    files = kept or {
        each.path: TreeCacheEntry(
            each.size, each.blob_id, each.lfs and each.lfs.sha256, each.lfs and each.lfs.size, each.xet_hash
        )
        for each in api.list_repo_tree(repository, recursive=True, revision=commit)
        if isinstance(each, RepoFile)
    }
    for name, file in files.items():
        if not all(each is None or DIGEST.fullmatch(each) for each in (file.lfs_sha256, file.xet_hash)):
            raise ValueError(f"the file {name!r:.100} has the digest {file.lfs_sha256!r:.100}")
    if not kept:
        write_tree_cache(folder, commit, files)
    return read_tree_cache(folder, commit) is not None


def _check_disk(hub_id: HubId, needed: int, cache: Path) -> None:
    folder = next(each for each in (cache, *cache.parents) if each.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise BadInputError(
            f"{hub_id} needs {needed / _GIB:.2f} GiB, but {free / _GIB:.2f} GiB are free in {folder}",
            expected="enough free disk space for the whole download",
            remedy="free some space, or set HF_HOME to a folder on a larger disk",
        )


def _check_digests(hub_id: HubId, folder: Path, names: Sequence[str]) -> None:
    """Compare new files with the digests that their names in the cache state. A wrong file is removed."""
    for name in names:
        pointer = folder / name
        stated = pointer.readlink().name if pointer.is_symlink() else ""  # a blob may be a link to a shared one
        if _digest_like(pointer, stated) not in (None, stated):
            for path in (pointer.resolve(), pointer.parent / pointer.readlink(), pointer):
                path.unlink(missing_ok=True)
            raise BadInputError(
                f"{hub_id}: {name} arrived with another digest than the Hub states",
                expected=f"the digest {stated}",
                remedy="the file was removed from the cache; download it again",
            )


def _digest_like(blob: Path, stated: str) -> str | None:
    """Return the digest of a file of the kind of `stated`: SHA-256, Git's SHA-1, or None for another text."""
    size = blob.stat().st_size
    kinds = {64: hashlib.sha256(), 40: hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)}
    digest = kinds.get(len(stated))
    if digest is None:
        return None
    with blob.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def hub_errors(hub_id: HubId) -> Iterator[None]:
    """Raise BadInputError for errors of the Hub, of the network and of the disk."""
    from httpx2 import HTTPError, InvalidURL
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        FileMetadataError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"{constants.ENDPOINT}/{hub_id.repository}"
    try:
        yield
    except GatedRepoError as error:
        raise BadInputError(
            f"{hub_id.repository} is gated: {_line(error)}",
            expected="a token of an account with access",
            remedy=f"accept the terms at {page}, then log in with 'hf auth login' or set HF_TOKEN",
        ) from error
    except RepositoryNotFoundError as error:
        raise BadInputError(
            f"the Hub has no repository {hub_id.repository}, or it is private",
            expected="ORG/NAME of a repository that you may read",
            remedy="check the spelling; for a private one, log in with 'hf auth login' or set HF_TOKEN",
        ) from error
    except RevisionNotFoundError as error:
        raise BadInputError(
            f"{hub_id.repository} has no revision {hub_id.revision or 'main'!r}",
            expected="a branch, a tag or a commit",
            remedy=f"choose one of {page}/refs, or omit the revision",
        ) from error
    except LocalEntryNotFoundError as error:
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
        if isinstance(error.__cause__, HfHubHTTPError | FileMetadataError):
            offline = f"the Hub's answer is no help: {_line(error.__cause__)}"
        raise BadInputError(
            f"{hub_id} is not complete in the cache, and {offline}",
            expected="all needed files in the cache, or a connection",
            remedy="check the network, or unset HF_HUB_OFFLINE and download it once",
        ) from error
    except HFValidationError as error:
        raise BadInputError(
            f"{hub_id} is no id: {_line(error)}", expected="ORG/NAME or ORG/NAME@REVISION", remedy="correct the id"
        ) from error
    except (AssertionError, AttributeError, InvalidURL, LookupError, RecursionError, TypeError, ValueError) as error:
        raise_if_from_handler(error)
        raise BadInputError(
            f"{hub_id}: {constants.ENDPOINT} answers otherwise than a Hub: {_line(error)}",
            expected="the requested commit, SHA-1 or SHA-256 digests as ETags, and names inside the repository",
            remedy="check HF_ENDPOINT and the network's proxy, and use an endpoint that you trust",
        ) from error
    except (HfHubHTTPError, HTTPError, OSError, RuntimeError) as error:
        raise_if_from_handler(error)
        raise BadInputError(
            f"{hub_id}: the transfer failed: {_line(error)}",
            expected="a complete transfer",
            remedy="check network, rights and free disk space, then try again; complete files are kept",
        ) from error


def _line(error: BaseException) -> str:
    """Return the line of a message that says most: the last of an HTTP error, the first of another."""
    from huggingface_hub.errors import HfHubHTTPError

    text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-isinstance(error, HfHubHTTPError)] if lines else type(error).__name__)[:300]
