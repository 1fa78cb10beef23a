"""The file of `generate --step-log`: a header line with bundle, options and params, then a line per step."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.decoding.step import Step, step_table
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.options import DecodingParams

STEP_LOG_VERSION = 1
StepCallbacks = Callable[[int], Callable[[Step], None]]
"""Function from the number of a request to the callback for its steps."""


class StepLog:
    """Writer of a header and of steps.

    A step has its request's number: 0 for a single prompt, otherwise the line number.
    """

    def __init__(
        self, write: Callable[[str], None], manifest: Manifest, config: GenerationConfig, params: DecodingParams
    ) -> None:
        """Write the header. `config` resolves to `params`. Lines of a batch may override both."""
        self._write = write
        header = {
            "type": "header",
            "version": STEP_LOG_VERSION,
            "bundle": {record.path: record.sha256 for record in manifest.files},
            "config": config.requested(),
            "params": params.as_json(),
        }
        write(json.dumps(header))

    def request(self, number: int) -> Callable[[Step], None]:
        """Return the callback that writes the steps of request `number`."""
        return lambda step: self._write(json.dumps({"type": "step", "request": number, **record_from_step(step)}))


def record_from_step(step: Step) -> dict[str, Any]:
    """Return branches, windows, confidences, winner, unmasked tokens, table and seconds of a step, as JSON values.

    "table" has the columns of `lopa.runtime.decoding.step_table`, without "step". "seconds" is by phase. For several
    devices, "split" has the seconds of the forward by device.
    """
    rows = step.rows
    return {
        "step": step.number,
        "prompt": step.branches[-1].layout.prompt,
        "prefix": rows.prefix,
        "commit": rows.commit,
        "window": max(rows.branch_lengths),
        "sampled": max(1, *rows.branch_columns),
        "branches": [
            {
                "lookahead": None
                if branch.lookahead is None
                else {
                    "rank": branch.lookahead.rank,
                    "position": branch.lookahead.position,
                    "token": branch.lookahead.token,
                    "confidence": branch.lookahead.confidence,
                },
                "window": length,
                "masked": len(masked),
                "confidence": confidence,
            }
            for branch, length, masked, confidence in zip(
                step.branches, rows.branch_lengths, rows.sampled, step.confidences, strict=True
            )
        ],
        "blocks": [
            [block.start, block.end, block.masks, block.state.value, block.fully_activated]
            for block in step.branches[-1].blocks
        ],
        "winner": step.winner,
        "unmasked": [
            [int(position), int(token)]
            for position, token in zip(step.unmasked.positions, step.unmasked.tokens, strict=True)
        ],
        "table": _table(step),
        **({"edited": _edits(step)} if len(step.edited) else {}),
        **({"remasked": step.remasked.tolist()} if len(step.remasked) else {}),
        "seconds": step.seconds,
        **({} if step.split is None else {"split": asdict(step.split)}),
    }


def _edits(step: Step) -> list[list[int]]:
    """Return position, old token and new token of every edit."""
    edited = step.edited
    columns = (edited.positions.tolist(), edited.before.tolist(), edited.tokens.tolist())
    return [list(each) for each in zip(*columns, strict=True)]


def _table(step: Step) -> dict[str, list[Any]]:
    """Return the columns of one step, with the digits of a float32 and null for values that are not finite."""
    columns = {name: column.tolist() for name, column in step_table(step).items() if name != "step"}
    for name in ("probability", "entropy"):
        columns[name] = [float(f"{value:.8g}") if math.isfinite(value) else None for value in columns[name]]
    return columns
