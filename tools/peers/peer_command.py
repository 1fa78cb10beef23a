"""Run of a peer's own program during preparation."""

import os
import subprocess
from collections.abc import Mapping, Sequence

from lopa.runtime.errors import MissingBackendError


def run_or_missing(command: Sequence[str], what: str, environment: Mapping[str, str] | None = None) -> None:
    """Run `command`, which creates `what`, with `environment` added to this process's.

    Raises MissingBackendError with the end of its output if it fails.
    """
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        raise MissingBackendError(
            f"{what} failed with {done.returncode}: {done.stdout.strip()[-600:]}",
            expected=" ".join(command[:4]) + " .. with exit code 0",
            remedy="run it manually, or continue without this peer",
        )
