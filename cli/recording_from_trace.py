"""The forwards of a file that `generate --trace` wrote, for the gear planner. Reads sizes only."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from lopa.bench.gear_recording import Recording
from lopa.cli.trace_file import TRACE_VERSION
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.contract import tiles
from lopa.runtime.costs import weights_digest
from lopa.runtime.errors import BadInputError
from lopa.runtime.gears import ForwardSizes, Source
from lopa.runtime.generation_config import GenerationConfig

_Line = TypeVar("_Line")
_EXPECTED = "a file written by generate --trace"
_Least0 = Annotated[int, msgspec.Meta(ge=0)]
_Least1 = Annotated[int, msgspec.Meta(ge=1)]


def recording_from_trace(path: Path, bundle: Bundle) -> Recording:
    """The forwards in a trace of `bundle`.

    Raises BadInputError, naming the line, when it is damaged, of another version or of another bundle.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}", expected=_EXPECTED, remedy="check the path") from error
    header = _checked_header(_from_line(lines[0], _HeaderLine, f"{path} line 1"), path, bundle)
    requests: dict[int, list[ForwardSizes]] = {}
    longest_prompt = 0
    for number, line in enumerate(lines[1:], start=2):
        if line:
            step = _from_line(line, _StepLine, f"{path} line {number}")
            requests.setdefault(step.request, []).append(
                ForwardSizes(1, len(step.branches), step.window, tiles(step.prefix), step.rows_wanted)
            )
            if step.step == 1:
                longest_prompt = max(longest_prompt, step.prefix + step.commit)
    if not requests:
        raise BadInputError(f"{path} has no steps", expected=_EXPECTED, remedy="record a decode: generate --trace")
    forwards = sum(map(len, requests.values()))
    source = Source(name=path.name, sha256=sha256_of_file(path), forwards=forwards)
    return Recording(tuple(map(tuple, requests.values())), (header,), longest_prompt, (source,))


class _HeaderLine(msgspec.Struct):
    """What is read of the first line."""

    type: Literal["header"]
    version: int
    bundle: dict[str, str]
    config: dict[str, Any]


class _StepLine(msgspec.Struct):
    """What is read of a step's line."""

    type: Literal["step"]
    request: int
    step: _Least1
    prefix: _Least0
    commit: _Least0
    window: _Least1
    rows_wanted: _Least1
    branches: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1)]


def _from_line(line: bytes, kind: type[_Line], source: str) -> _Line:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise BadInputError(
            f"{source} is damaged: {error}: {line[:60].decode(errors='replace')!r}",
            expected=_EXPECTED,
            remedy="record it again, or remove the line",
        ) from error


def _checked_header(header: _HeaderLine, path: Path, bundle: Bundle) -> GenerationConfig:
    """The options of the decode."""
    for name, found, expected in (
        ("version", header.version, TRACE_VERSION),
        ("weights", header.bundle.get(bundle.manifest.weights), weights_digest(bundle)),
    ):
        if found != expected:
            raise BadInputError(
                f"{path} is a trace of {name} {found}",
                expected=f"{name} {expected}, of {bundle.path}",
                remedy="record a decode of this bundle: generate --trace",
            )
    return GenerationConfig.from_mapping(header.config)
