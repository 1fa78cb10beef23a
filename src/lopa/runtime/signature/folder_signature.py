"""Signing of a folder, and comparison of a folder with its signature.

The signature covers every file of the folder except itself. Files that it does not list are refused, among them Git's
own, which other tools ignore. Links are refused, because their targets lie elsewhere.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa.runtime.errors import BadInputError, CheckFailedError, errors_as_bad_input
from lopa.runtime.files.output_file import write_atomically
from lopa.runtime.files.stamp import Stamp, stamp_from_status
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.signature.keys import Signer, Trust
from lopa.runtime.signature.signature_file import digests_from_statement, file_from_json, statement_from_digests

SIGNATURE_NAME = "model.sig"
_MAX_BYTES = 2**26
_MAX_NAMED = 5
_GIT_NAMES = (".git", ".gitattributes", ".github", ".gitignore")
"""Names in a folder that model_signing leaves out. It would report them as missing if a signature listed them."""
_SIGN_AGAIN = "if you changed it, sign it again: lopa-export sign BUNDLE --key KEY; otherwise do not use it"


def sign_folder(folder: Path, signer: Signer, expected: Mapping[str, str] | None = None) -> int:
    """Write the signature of `folder` into it, atomically, and return the number of signed files.

    `expected` has the hex sha256 of files by their path, e.g. those of a manifest. Raises CheckFailedError if one
    differs. Raises BadInputError for a link, an unreadable file, a file of Git and a name that is not in Unicode.
    Raises BadInputError or OutputFailedError if the signature cannot be written.
    """
    digests = _hashed(folder).digests
    refused = [name for name in digests if name.split("/")[0] in _GIT_NAMES or _unicode(name) != name]
    if refused:
        raise BadInputError(
            f"{folder} has files that a signature cannot list: {_names(refused)}",
            expected="no files of Git, and names in Unicode",
            remedy="move these files out of the folder",
        )
    altered = [name for name, digest in (expected or {}).items() if digests.get(name) != digest]
    if altered:
        raise CheckFailedError(
            f"{_names(altered)} in {folder} changed since the export: SHA-256 differs from the manifest",
            expected="the files that the export wrote",
            remedy="do not sign it; copy the bundle again, or export the checkpoint again",
        )
    statement = statement_from_digests(_unicode(folder.resolve().name), digests, SIGNATURE_NAME)
    write_atomically(folder / SIGNATURE_NAME, signer.sign(statement))
    return len(digests)


@dataclass(frozen=True)
class CheckedFolder:
    """A folder that is as it was signed."""

    digests: Mapping[str, str]
    """The hex sha256 of every file by its path, except the signature's."""
    stamps: Mapping[str, Stamp]
    """Stamps of the folder and of everything in it, to compare after its files were opened (check_stamps)."""


def check_signature(folder: Path, trust: Trust) -> CheckedFolder:
    """Compare `folder` with its signature.

    Raises CheckFailedError without a signature, for one by an untrusted key, and for files that were changed, added or
    removed since. Raises BadInputError for a malformed signature, and for a link or an unreadable file in the folder.
    """
    path = folder / SIGNATURE_NAME
    with errors_as_bad_input(str(folder), expected="a bundle folder", remedy="check the path"):
        is_signed = path in folder.iterdir()
    if not is_signed:
        raise CheckFailedError(
            f"{folder} is not signed: it has no {SIGNATURE_NAME}",
            expected="a bundle that is signed by a trusted key",
            remedy="do not use it, or sign your own: lopa-export sign BUNDLE --key KEY",
        )
    text = bytes_from_file(path, expected="a signature", remedy="sign the bundle again", max=_MAX_BYTES)
    file = file_from_json(text, source=str(path))
    trust.check(file, source=str(path))
    signed = digests_from_statement(file.dsse_envelope.payload, source=f"the statement in {path}")
    checked = _hashed(folder)
    found = checked.digests
    differences = {
        "changed": [name for name in signed if name in found and found[name] != signed[name]],
        "missing": [name for name in signed if name not in found],
        "added": [name for name in found if name not in signed],
    }
    if any(differences.values()):
        listed = "; ".join(f"{what}: {_names(names)}" for what, names in differences.items() if names)
        raise CheckFailedError(
            f"{folder} differs from its signature: {listed}", expected="the folder as it was signed", remedy=_SIGN_AGAIN
        )
    return checked


def _hashed(folder: Path) -> CheckedFolder:
    """Return the digests and stamps of what `folder` has, each stamp from the moment before its file is read."""
    found: dict[str, str] = {}
    with errors_as_bad_input(str(folder), expected="a folder with readable files", remedy="check its permissions"):
        stamps = {".": stamp_from_status(folder.stat(), is_strict=True)}
        for parent, folders, files in os.walk(folder, onerror=_raise):
            for name in (*folders, *files):
                path = Path(parent, name)
                listed = path.relative_to(folder).as_posix()
                if path.is_symlink() or not (path.is_dir() or path.is_file()):
                    raise BadInputError(
                        f"{folder}: {_names([listed])} is a link or no regular file",
                        expected="regular files only",
                        remedy="copy the folder with the targets of its links: cp -rL",
                    )
                if name in folders or listed == SIGNATURE_NAME:
                    stamps[listed] = stamp_from_status(path.stat(), is_strict=True)
                    continue
                with path.open("rb") as file:
                    stamps[listed] = stamp_from_status(os.fstat(file.fileno()), is_strict=True)
                    found[listed] = hashlib.file_digest(file, "sha256").hexdigest()
    return CheckedFolder(dict(sorted(found.items())), stamps)


def _unicode(name: str) -> str:
    """Return the name of a file or folder with "?" for bytes that are not UTF-8."""
    return name.encode(errors="replace").decode()


def _names(names: Sequence[str]) -> str:
    more = "" if len(names) <= _MAX_NAMED else f" and {len(names) - _MAX_NAMED} more"
    return ", ".join(name if name.isprintable() else ascii(name) for name in names[:_MAX_NAMED]) + more


def _raise(error: OSError) -> None:
    raise error
