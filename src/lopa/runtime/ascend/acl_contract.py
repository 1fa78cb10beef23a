"""Assumptions of the adapter about pyACL with their evidence, read from acl_contract.json."""

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

TABLE = Path(__file__).with_name("acl_contract.json")
Evidence = Literal["doc", "source", "recorded"]
"""Evidence of an entry: vendor documentation, published source code, or a recording on a machine with an NPU."""
Returns = Literal["ret", "value, ret", "value"]
"""Return values of a call: its code, a value and its code, or a value alone."""


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One function of the module `acl`."""

    name: str
    """Name without `acl.`."""
    arguments: str
    returns: Returns
    meaning: str
    evidence: Evidence


class ContractRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition that applies to several calls."""

    name: str
    meaning: str
    evidence: Evidence


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error code with its meaning and the remedy for users."""

    code: int
    name: str
    meaning: str
    remedy: str
    evidence: Evidence


class AclContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of acl_contract.json."""

    about: str
    calls: list[Call]
    rules: list[ContractRule]
    codes: list[Code]


@cache
def acl_contract() -> AclContract:
    """Return the table in acl_contract.json."""
    return msgspec.json.decode(TABLE.read_bytes(), type=AclContract)


@cache
def calls_by_name() -> dict[str, Call]:
    """Return every call that the adapter makes, by name."""
    return {call.name: call for call in acl_contract().calls}


def code_of_number(number: int) -> Code | None:
    """Return the entry of an error code, or None."""
    return next((code for code in acl_contract().codes if code.code == number), None)
