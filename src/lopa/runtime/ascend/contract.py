"""What the adapter takes for granted of pyACL, each thing with how it is known: acl_contract.json, read.

Does not call pyACL.
"""

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

TABLE = Path(__file__).with_name("acl_contract.json")
Evidence = Literal["doc", "source", "recorded"]
"""The vendor's documentation, published source, or seen on a machine with an NPU."""
Returns = Literal["ret", "value, ret", "value"]
"""What a call gives: its code, a value and its code, or a value alone."""


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One function of the module `acl`."""

    name: str
    """Behind `acl.`"""
    arguments: str
    returns: Returns
    meaning: str
    evidence: Evidence


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that holds for several calls."""

    name: str
    meaning: str
    evidence: Evidence


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error code: what its name says, and what a user can do."""

    code: int
    name: str
    meaning: str
    mend: str
    evidence: Evidence


class AclContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table."""

    about: str
    calls: list[Call]
    rules: list[Rule]
    codes: list[Code]


@cache
def acl_contract() -> AclContract:
    """The table that lies here."""
    return msgspec.json.decode(TABLE.read_bytes(), type=AclContract)


@cache
def calls_by_name() -> dict[str, Call]:
    """Every call that the adapter makes."""
    return {call.name: call for call in acl_contract().calls}


def code_of_number(number: int) -> Code | None:
    """What is known of an error code."""
    return next((code for code in acl_contract().codes if code.code == number), None)
