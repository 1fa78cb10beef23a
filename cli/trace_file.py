"""The file of `generate --trace`: a header line that names the bundle and the options, then a line per step."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lopa.cli.jsonl import lines_into
from lopa.runtime.decoding import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.manifest import Manifest
from lopa.runtime.trace import record_from_step

TRACE_VERSION = 1


class TraceWriter:
    """Writes steps, each with the number of its request (0 for a single prompt, else its line in the prompt file)."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def request(self, number: int) -> Callable[[Step], None]:
        """A function that writes the steps of request `number`."""
        return lambda step: self._write(json.dumps({"type": "step", "request": number, **record_from_step(step)}))


@contextmanager
def trace_into(path: Path | None, manifest: Manifest, config: GenerationConfig) -> Iterator[TraceWriter | None]:
    """A writer into `path`, or None without one."""
    if path is None:
        yield None
        return
    with lines_into(path) as write:
        header = {
            "type": "header",
            "version": TRACE_VERSION,
            "bundle": {record.path: record.sha256 for record in manifest.files},
            "config": dataclasses.asdict(config),
        }
        write(json.dumps(header))
        yield TraceWriter(write)
