"""lopa-export sign: signs a bundle."""

import os
import sys
from getpass import getpass
from pathlib import Path

import click

from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.program.lazy_group import FOLDER
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.hub.hub_bundle import check_own_bundle
from lopa.runtime.signature import sign_folder, signer_from_files
from lopa.runtime.signature.folder_signature import SIGNATURE_NAME
from lopa.runtime.signature.keys import is_encrypted

PASSWORD = "LOPA_SIGNING_PASSWORD"
_FILE = click.Path(path_type=Path)


@click.command(
    name="sign",
    cls=GroupedCommand,
    examples=(
        "lopa-export sign BUNDLE --key KEY.pem",
        "lopa-export sign BUNDLE --key KEY.pem --certificate SIGNER.pem --chain ISSUER.pem",
    ),
)
@click.argument("bundle", type=FOLDER)
@option("--key", required=True, type=_FILE, metavar="FILE", help="Private elliptic curve key in PEM.")
@option("--certificate", type=_FILE, metavar="FILE", help="Certificate of the key, in PEM.")
@option("--chain", multiple=True, type=_FILE, metavar="FILE", help="Certificate of an issuer, in PEM. Repeatable.")
def command(bundle: Path, key: Path, certificate: Path | None, chain: tuple[Path, ...]) -> None:
    """Sign all files of BUNDLE with a key, and write the signature to BUNDLE/model.sig.

    The format is that of OpenSSF Model Signing 1.0. verify --signature and serve --require-signature check it. Sign
    again after any change, e.g. by edit, tune, tensorrt or bench costs. The password of an encrypted key is asked for,
    or taken from the variable LOPA_SIGNING_PASSWORD.
    """
    if chain and certificate is None:
        raise click.UsageError("--chain needs --certificate")
    check_own_bundle(bundle)
    opened = Bundle.open(bundle)
    password = _password(key) if is_encrypted(key) else None
    files = sign_folder(opened.path, signer_from_files(key, password, certificate, chain), opened.digests)
    click.echo(f"{bundle / SIGNATURE_NAME}: {files} files signed")


def _password(key: Path) -> bytes:
    if PASSWORD in os.environ:
        return os.environ[PASSWORD].encode()
    if not sys.stdin.isatty():
        raise BadInputError(
            f"{key} is encrypted, and there is no terminal to ask for its password",
            expected=f"the password in the variable {PASSWORD}",
            remedy=f"set {PASSWORD}, or run in a terminal",
        )
    return getpass(f"Password of {key}: ").encode()
