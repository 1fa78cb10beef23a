"""Assumptions about ATC with their evidence, from contract.json, and diagnosis of a failed run by its output."""

import re
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

_TABLE = Path(__file__).with_name("contract.json")
_CODE = re.compile(r"\bE[A-Z]?\d{4,5}\b")
Evidence = Literal["doc", "source", "recorded"]
"""Source of an assumption: vendor documentation, published source code, or a recording from a machine with CANN."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Assumption about ATC, with its evidence."""

    kind: Literal["flag", "rule", "banner", "exit code", "file", "environment"]
    name: str
    meaning: str
    evidence: Evidence


class KnownFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known way in which ATC fails."""

    codes: list[str]
    """Error codes, one of which ATC prints."""
    pattern: str | None
    """Regular expression for ATC's output if the failure has no code."""
    cause: str
    remedy: str
    exit_code: Literal[1, 2, 3]
    """Exit code of lopa-export: 1 the graph cannot be compiled, 2 bad input, 3 broken installation."""
    evidence: Evidence


class AtcContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of contract.json."""

    about: str
    entries: list[Entry]
    failures: list[KnownFailure]


@cache
def atc_contract() -> AtcContract:
    """Return the table of contract.json."""
    return msgspec.json.decode(_TABLE.read_bytes(), type=AtcContract)


def codes_of_output(output: str) -> list[str]:
    """Return the error codes in ATC's output, in order, without repetition."""
    return list(dict.fromkeys(_CODE.findall(output)))


def failure_of_output(output: str) -> KnownFailure | None:
    """Return the failure with the first known code in `output`, or the first whose pattern matches, or None."""
    failures = atc_contract().failures
    by_code = {code: failure for failure in failures for code in failure.codes}
    for code in codes_of_output(output):
        if code in by_code:
            return by_code[code]
    return next((each for each in failures if each.pattern and re.search(each.pattern, output, re.IGNORECASE)), None)
