"""Recorded calls of pyACL and their results, compared with the adapter's call table."""

import threading
from collections.abc import Callable, Sequence
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec

from lopa.runtime.ascend.acl_contract import AclContract, Call, Code, ContractRule

Entry = TypeVar("Entry", Call, ContractRule, Code)


class RecordedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One recorded call."""

    name: str
    arguments: list[str]
    """Types of the arguments, or the values of numbers below 2**20, which are no addresses."""
    returned: str
    """Type of the result, or comma-separated types."""
    code: int | None
    """Return code, or None if the table declares none."""
    thread: str = "MainThread"
    """Name of the calling thread."""


class Transcript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """File written by tools/vendors/record_ascend.py."""

    stand_in: bool
    """True for the tests' stand-in of pyACL, which proves nothing about a real machine."""
    soc: str
    made: str
    """ISO date and time."""
    calls: list[RecordedCall]
    provoked: dict[str, int]
    """Return codes of calls that were made to fail, by name."""
    largest_difference: dict[str, float]
    """Maximum difference of the statistics from ONNX Runtime on the CPU by shape bucket, relative to the largest
    number."""
    rules: list[str]
    """Rules of the table that these calls confirm."""


class RecordingAcl:
    """Replacement for the module `acl` that forwards and records the calls of the table."""

    def __init__(self, module: Any, contract: AclContract) -> None:
        self.calls: list[RecordedCall] = []
        self.rt, self.mdl = SimpleNamespace(), SimpleNamespace()
        for call in contract.calls:
            group, _, name = call.name.rpartition(".")
            place = module if not group else getattr(module, group, None)
            if hasattr(place, name):  # the adapter reports missing functions itself
                setattr(self if not group else getattr(self, group), name, self._recording(call, getattr(place, name)))

    def _recording(self, call: Call, function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            result = function(*arguments)
            self.calls.append(_record_call(call, arguments, result, threading.current_thread().name))
            return result

        return record


def differences_from_contract(transcript: Transcript, contract: AclContract) -> list[str]:
    """Return the differences between the calls and the table, in order and without repetition."""
    known = {call.name: call for call in contract.calls}
    codes = {code.code for code in contract.codes}
    found = [f"acl.{name} was never called" for name in known if name not in {call.name for call in transcript.calls}]
    for call in transcript.calls:
        returns = known[call.name].returns
        kinds = call.returned.split(", ")
        if (len(kinds) == 2) != (returns == "value, ret"):
            found.append(f"acl.{call.name} returned ({call.returned}), expected {returns}")
        elif returns != "value" and kinds[-1] != "int":
            found.append(f"acl.{call.name} returned ({call.returned}), whose code is not an integer")
        elif call.code and call.name not in transcript.provoked:
            found.append(f"acl.{call.name} returned the code {call.code}")
    found += [
        f"acl.{name} was made to fail and returned {code}, which is not in the table"
        for name, code in transcript.provoked.items()
        if code not in codes
    ]
    return list(dict.fromkeys(found))


def differences_of_transcripts(found: Transcript, earlier: Transcript) -> list[str]:
    """Return the first difference per thread in order, types or codes of the calls, and other codes."""
    differences = []
    for thread in dict.fromkeys(call.thread for call in (*found.calls, *earlier.calls)):
        ours, theirs = ([call for call in each.calls if call.thread == thread] for each in (found, earlier))
        pairs = enumerate(zip_longest(ours, theirs))
        first = next(((number, one, other) for number, (one, other) in pairs if one != other), None)
        if first is not None:
            number, one, other = first
            differences.append(f"call {number} on {thread}: {_text(one)}, earlier {_text(other)}")
    return differences + [
        f"{name} was made to fail and returned {found.provoked.get(name)}, earlier {code}"
        for name, code in earlier.provoked.items()
        if found.provoked.get(name) != code
    ]


def marked_contract(contract: AclContract, transcript: Transcript) -> AclContract:
    """Return the table with evidence "recorded" for everything in the transcript.

    Raises ValueError for a transcript of the stand-in.
    """
    if transcript.stand_in:
        raise ValueError("received a transcript of the stand-in, expected one of a machine with an NPU")
    differing = " ".join(differences_from_contract(transcript, contract))
    called = {call.name for call in transcript.calls if f"acl.{call.name} " not in differing}
    codes = set(transcript.provoked.values()) | {call.code for call in transcript.calls}
    return AclContract(
        contract.about,
        [_marked(call, call.name in called) for call in contract.calls],
        [_marked(rule, rule.name in transcript.rules) for rule in contract.rules],
        [_marked(code, code.code in codes) for code in contract.codes],
    )


def _marked(entry: Entry, is_confirmed: bool) -> Entry:
    return msgspec.structs.replace(entry, evidence="recorded") if is_confirmed else entry


def _record_call(call: Call, arguments: Sequence[Any], result: Any, thread: str) -> RecordedCall:
    kinds = [type(each).__name__ for each in result] if isinstance(result, tuple) else [type(result).__name__]
    last = result[-1] if isinstance(result, tuple) else result
    code = last if call.returns != "value" and isinstance(last, int) else None
    return RecordedCall(call.name, [_argument(each) for each in arguments], ", ".join(kinds), code, thread)


def _argument(argument: Any) -> str:
    if isinstance(argument, int) and abs(argument) < 1 << 20:
        return str(argument)
    return type(argument).__name__


def _text(call: RecordedCall | None) -> str:
    if call is None:
        return "none"
    return f"{call.name}({', '.join(call.arguments)}) -> {call.returned}, code {call.code}"
