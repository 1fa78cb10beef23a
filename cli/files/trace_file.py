"""The file of `generate --trace`: a header line that names the bundle and the options, then a line per step."""

import dataclasses
import json
from collections.abc import Callable

from lopa.cli.files.trace import record_from_step
from lopa.runtime.algorithm.decoding import Step
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.generation_config import GenerationConfig

TRACE_VERSION = 1


class TraceWriter:
    """Writes a header, then steps, each with the number of its request (0 for a single prompt, else its line)."""

    def __init__(self, write: Callable[[str], None], manifest: Manifest, config: GenerationConfig) -> None:
        self._write = write
        header = {
            "type": "header",
            "version": TRACE_VERSION,
            "bundle": {record.path: record.sha256 for record in manifest.files},
            "config": dataclasses.asdict(config),
        }
        write(json.dumps(header))

    def request(self, number: int) -> Callable[[Step], None]:
        """A function that writes the steps of request `number`."""
        return lambda step: self._write(json.dumps({"type": "step", "request": number, **record_from_step(step)}))
