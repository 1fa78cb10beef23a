"""Results of an interrupted batch that --resume keeps. This module changes no file.

Results are written in the order of their lines, so a file contains the results of the first lines. Each result has the
number of its line, and a digest of the line and of the options and files that it was decoded with.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from lopa.cli.batch.openai_line import identity_of_openai_answer
from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.files.output_file import OutputPlace
from lopa.runtime.files.untrusted_input import object_from_json

_EXPECTED = "results of an earlier run with the same prompts, bundle and options"
_REMEDY = "repeat the options of that run, or give another --output"
_MAX_RESULT_BYTES = 2**28


@dataclass(frozen=True)
class KeptResults:
    """Number and size of the results that an earlier run wrote."""

    results: int = 0
    errors: int = 0
    """Number of results that are errors."""
    end: int = 0
    """Bytes up to the end of the last complete line."""


def kept_results(place: OutputPlace, lines: Iterator[RawLine]) -> KeptResults:
    """Check the results in a file against `lines`, which afterwards continues with the first line without a result.

    An incomplete last line does not count. Raises BadInputError for a line that is not the result of its prompt.
    """
    kept, path = KeptResults(), place.path
    if not place.regular:
        raise BadInputError(
            f"--resume, but {path} is not a regular file",
            expected="a file that can be read again",
            remedy="omit --resume, or write to a file",
        )
    with errors_as_bad_input(str(path), expected=_EXPECTED, remedy=_REMEDY), path.open("rb") as file:
        for number, written in enumerate(_whole_lines(file), start=1):
            value = object_from_json(
                written, source=f"{path} line {number} is not a result", expected=_EXPECTED, remedy=_REMEDY
            )
            line = next(lines, None)
            if line is None or _identity(value) != (line.number, line.digest):
                which = "a prompt that the input lacks" if line is None else f"line {line.number} of this run's input"
                raise BadInputError(
                    f"--resume, but line {number} of {path} is not the result of {which}",
                    expected=_EXPECTED,
                    remedy=_REMEDY,
                )
            failed = value.get("error") is not None
            kept = KeptResults(kept.results + 1, kept.errors + failed, kept.end + len(written))
    return kept


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    while (line := file.readline(_MAX_RESULT_BYTES)).endswith(b"\n"):
        yield line


def _identity(value: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return number and digest of the line that a result claims to answer."""
    return identity_of_openai_answer(value) or (value.get("line"), value.get("request"))
