"""Forwards recorded by `generate --step-log`, for the planner of shape buckets. Only the sizes are read."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from lopa.bench.buckets.forward_recording import Recording
from lopa.cli.files.step_log import STEP_LOG_VERSION
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.buckets import ShapeSource
from lopa.runtime.contract import tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.options import MAX_BRANCHES, DecodingParams

_Line = TypeVar("_Line")
_EXPECTED = "a file written by generate --step-log"
_MAX_BYTES = 2**30
"""Maximum bytes of a step log. A step takes a few kilobytes."""
_ACCELERATOR = "cuda:0"
_NonNegative = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


def recording_from_step_log(path: Path, bundle: Bundle) -> Recording:
    """Return the forwards in a step log of `bundle`.

    Raises BadInputError, with the line's number, for a damaged step log and for one of another version or bundle.
    """
    text = bytes_from_file(path, expected=_EXPECTED, remedy="check the path", max=_MAX_BYTES)
    lines = text.split(b"\n")
    params = _params_from_header(_from_line(lines[0], _HeaderLine, f"{path} line 1"), path, bundle)
    requests: dict[int, list[Sizes]] = {}
    longest_prompt = 0
    for number, line in enumerate(lines[1:], start=2):
        if line:
            step = _from_line(line, _StepLine, f"{path} line {number}")
            _check_fits(step, bundle, f"{path} line {number}")
            requests.setdefault(step.request, []).append(step.sizes)
            if step.step == 1:
                longest_prompt = max(longest_prompt, step.prompt)
    if not requests:
        raise BadInputError(f"{path} has no steps", expected=_EXPECTED, remedy="record a decode: generate --step-log")
    forwards = sum(map(len, requests.values()))
    source = ShapeSource(name=path.name, sha256=sha256_of_file(path), forwards=forwards)
    return Recording(tuple(map(tuple, requests.values())), (params,), longest_prompt, (source,))


class _HeaderLine(msgspec.Struct):
    """The fields read from the first line."""

    type: Literal["header"]
    version: int
    bundle: dict[str, str]
    config: dict[str, Any]


class _StepLine(msgspec.Struct):
    """The fields read from the line of a step."""

    type: Literal["step"]
    request: int
    step: _Positive
    prefix: _NonNegative
    commit: _NonNegative
    window: _Positive
    branches: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1)]
    sampled: _Positive
    prompt: _NonNegative
    """Positions of the prompt."""

    @property
    def sizes(self) -> Sizes:
        """Sizes of the forward."""
        return Sizes(1, len(self.branches), self.window, tiles(self.prefix), self.sampled)


def _from_line(line: bytes, kind: type[_Line], source: str) -> _Line:
    shown = line[:60].decode(errors="replace")
    return value_from_json(
        line,
        kind,
        source=f"{source} is damaged: {shown!r}",
        expected=_EXPECTED,
        remedy="record it again, or remove the line",
    )


def _check_fits(step: _StepLine, bundle: Bundle, source: str) -> None:
    """Raise BadInputError for sizes that no decode of `bundle` has."""
    positions = bundle.manifest.dimensions.max_positions
    largest = max(step.prefix, step.commit, step.window, step.sizes.wanted, step.prompt)
    if largest > positions or len(step.branches) > MAX_BRANCHES:
        raise BadInputError(
            f"{source} has {len(step.branches)} branches and a size of {largest} positions",
            expected=f"at most {MAX_BRANCHES} branches and {positions} positions, as in {bundle.path}",
            remedy="record a decode of this bundle: generate --step-log",
        )


def _params_from_header(header: _HeaderLine, path: Path, bundle: Bundle) -> DecodingParams:
    """Return the decode's plan for an accelerator, even if a CPU recorded it, since only accelerators use buckets."""
    for name, found, expected in (
        ("version", header.version, STEP_LOG_VERSION),
        ("weights", header.bundle.get(bundle.manifest.weights), bundle.manifest.weights_digest),
    ):
        if found != expected:
            raise BadInputError(
                f"{path} is a step log of {name} {found}",
                expected=f"{name} {expected}, as in {bundle.path}",
                remedy="record a decode of this bundle: generate --step-log",
            )
    return bundle.manifest.params(GenerationConfig.from_mapping(header.config), [_ACCELERATOR])
