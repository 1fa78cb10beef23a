"""Which results of a batch that was cut short stay: those of the first lines of the very same input.

Results are written in the order of their lines, so that they are a beginning of all results. Every one tells the
number of its line and a digest of the line and of what it was decoded with. Alters nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from lopa.cli.batch.openai_answer import identity_of_openai_answer
from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import OutputPlace
from lopa.runtime.files.untrusted_input import object_from_json, refused_as_bad_input

_EXPECTED = "results of the same prompts, bundle and options, as far as a run before came"
_REMEDY = "give what it was made with, or another --output"
_MAX_RESULT_BYTES = 2**28


@dataclass(frozen=True)
class Kept:
    """What a run before left."""

    results: int = 0
    errors: int = 0
    """Among them."""
    end: int = 0
    """Bytes of the file up to the end of the last whole line."""


def kept_results(place: OutputPlace, lines: Iterator[RawLine]) -> Kept:
    """Walk through the results in a file and as many of `lines`, which are then behind those that are answered.

    A last line that was cut is not counted. Raises BadInputError when a result is not the one of its line, or none.
    """
    kept, path = Kept(), place.path
    if not place.regular:
        raise BadInputError(
            f"--resume, but {path} is not a regular file",
            expected="a file that can be read again",
            remedy="leave --resume out, or write to a file",
        )
    with refused_as_bad_input(str(path), expected=_EXPECTED, remedy=_REMEDY), path.open("rb") as file:
        for number, written in enumerate(_whole_lines(file), start=1):
            value = object_from_json(
                written, source=f"{path} line {number} is no result", expected=_EXPECTED, remedy=_REMEDY
            )
            line = next(lines, None)
            if line is None or _identity(value) != (line.number, line.digest):
                which = "a prompt that the input has not" if line is None else f"line {line.number} of this run's input"
                raise BadInputError(
                    f"--resume, but line {number} of {path} is not the result of {which}",
                    expected=_EXPECTED,
                    remedy=_REMEDY,
                )
            failed = value.get("error") is not None
            kept = Kept(kept.results + 1, kept.errors + failed, kept.end + len(written))
    return kept


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    while (line := file.readline(_MAX_RESULT_BYTES)).endswith(b"\n"):
        yield line


def _identity(value: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """The number and the digest of the line that a result is for, as it says."""
    return identity_of_openai_answer(value) or (value.get("line"), value.get("request"))
