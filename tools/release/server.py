"""A server of an installed wheel: where it listens, while the block runs, and that it ends well when it is asked to."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lopa.runtime.errors import CheckFailedError
from tools.release.environment import Environment
from tools.release.programs import variables_alone

_LAST = 60.0
"""Seconds in which it has to end."""


@contextmanager
def url_of_server(environment: Environment, bundle: Path, model: str) -> Iterator[str]:
    """Start `lopa-export serve` on a free port; its /v1 is ready inside the block.

    Raises CheckFailedError when it does not start, or ends otherwise than with exit code 0.
    """
    command: list[str | Path] = [environment.script, "serve", bundle, "--port", "0", "--model", model, "--threads", "1"]
    with subprocess.Popen(
        command, cwd=environment.folder, env=variables_alone(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None  # a pipe, as asked for
        said, served = "", False
        try:
            for line in process.stderr:
                said += line
                if found := re.search(r"http://\S+/v1", line):
                    served = True
                    yield found[0]
                    break
            process.terminate()
            code = process.wait(_LAST)
        finally:
            process.kill()
    if code != 0 or not served:
        raise CheckFailedError(
            f"lopa-export serve ended with {code}: {said[-500:]}",
            expected="where it listens, and exit code 0 when it is asked to end",
            remedy="see what it said",
        )
