"""Signatures of a folder in the format of OpenSSF Model Signing 1.0: one file, model.sig, that any of its tools reads.

`signature_file` is that file with its statement, the signed list of files. `keys` signs and checks it with the library
cryptography. `folder_signature` compares a folder with its statement.

The library model_signing 1.1.1 would read and write the file, but not make the checks. It accepts certificates that
expired, that are not for code signing, and added files of Git. It hashes files by their paths, without stamps.
"""

from lopa.runtime.signature.folder_signature import CheckedFolder, check_signature, sign_folder
from lopa.runtime.signature.keys import Signer, signer_from_files, trust_from_files

__all__ = ["CheckedFolder", "Signer", "check_signature", "sign_folder", "signer_from_files", "trust_from_files"]
