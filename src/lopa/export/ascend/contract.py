"""What the build takes for granted of ATC, each thing with how it is known: ascend_contract.json, read.

Also recognises a failed run by what it printed. Does not call ATC.
"""

import re
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

_TABLE = Path(__file__).with_name("contract.json")
_CODE = re.compile(r"\bE[A-Z]?\d{4,5}\b")
Evidence = Literal["doc", "source", "recorded"]
"""The vendor's documentation, published source, or seen on a machine with CANN."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that is taken for granted."""

    kind: Literal["flag", "rule", "banner", "exit code", "file", "environment"]
    name: str
    meaning: str
    evidence: Evidence


class KnownFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way in which ATC is known to fail."""

    codes: list[str]
    """That it prints, one of them."""
    pattern: str | None
    """A regular expression for its output, where it has no code."""
    cause: str
    mend: str
    exit_code: Literal[1, 2, 3]
    """Ours: the graph cannot be compiled, the input is bad, or the installation is."""
    evidence: Evidence


class AtcContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table."""

    about: str
    entries: list[Entry]
    failures: list[KnownFailure]


@cache
def atc_contract() -> AtcContract:
    """The table that lies here."""
    return msgspec.json.decode(_TABLE.read_bytes(), type=AtcContract)


def codes_of_output(output: str) -> list[str]:
    """The error codes that ATC printed, in order, each once."""
    return list(dict.fromkeys(_CODE.findall(output)))


def failure_of_output(output: str) -> KnownFailure | None:
    """What is known of the first code in `output` that is known, or else of its words."""
    failures = atc_contract().failures
    by_code = {code: failure for failure in failures for code in failure.codes}
    for code in codes_of_output(output):
        if code in by_code:
            return by_code[code]
    return next((each for each in failures if each.pattern and re.search(each.pattern, output, re.IGNORECASE)), None)
