"""Decodes by lopa-web as records that tests/conformance compares with recordings.

Decodes are JSON from web/test/decode_with_steps.mjs. The records have the attributes of a Step that comparisons read.
"""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from lopa.runtime.decoding.step import Step
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.state.branch import BlockState

ONLY_IN_PYTHON = ("logprobs",)
"""Options of recordings that change no token."""


def request_of(prompt: list[int], config: GenerationConfig, *, eos: int) -> dict[str, Any]:
    """Return a request of web/test/replay.mjs."""
    options = {name: value for name, value in config.requested().items() if name not in ONLY_IN_PYTHON}
    return {"prompt": prompt, "options": options, "eos": eos}


def steps_of(decode: dict[str, Any]) -> list[Step]:
    """Return the steps of a decode."""
    return [cast("Step", _step(step)) for step in decode["steps"]]


def _step(step: dict[str, Any]) -> SimpleNamespace:
    unmasked = step["unmasked"]
    return SimpleNamespace(
        number=step["number"],
        branches=[_branch(each) for each in step["branches"]],
        rows=SimpleNamespace(
            prefix=step["prefix"], commit=step["commit"], branch_lengths=step["lengths"], sampled=step["sampled"]
        ),
        confidences=step["confidences"],
        winner=step["winner"],
        unmasked=_Unmasked(
            positions=np.array(unmasked["positions"], np.int64),
            tokens=np.array(unmasked["tokens"], np.int64),
            logprobs=np.log(np.array(unmasked["probabilities"])),
        ),
        lookaheads=[SimpleNamespace(**each) for each in step["lookaheads"]],
        edited=SimpleNamespace(**dict.fromkeys(("positions", "before", "tokens", "probabilities"), np.empty(0))),
    )


class _Unmasked(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.positions)


def _branch(branch: dict[str, Any]) -> SimpleNamespace:
    blocks = [
        SimpleNamespace(**{**block, "state": BlockState(block["state"]), "fully_activated": block["fullyActivated"]})
        for block in branch["blocks"]
    ]
    return SimpleNamespace(tokens=np.array(branch["tokens"], np.int64), ended=branch["ended"], blocks=blocks)
