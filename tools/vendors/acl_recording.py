"""Calls of pyACL as they really were: what they returned, held against the table that the adapter is written by.

Makes no call by itself, and knows neither devices nor bundles.
"""

import threading
from collections.abc import Callable, Sequence
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec

from lopa.runtime.ascend.contract import AclContract, Call, Code, Rule

Entry = TypeVar("Entry", Call, Rule, Code)


class RecordedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call."""

    name: str
    arguments: list[str]
    """Their types, and the numbers below 2**20, which are no addresses."""
    returned: str
    """The type, or types with commas between."""
    code: int | None
    """None where the table says that there is none."""
    thread: str = "MainThread"
    """Its name."""


class Transcript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tools/vendors/record_ascend.py writes."""

    stand_in: bool
    """Not pyACL, but the stand-in of the tests: shows nothing of a real machine."""
    soc: str
    made: str
    """ISO date and time."""
    calls: list[RecordedCall]
    provoked: dict[str, int]
    """Codes of calls that were made to fail."""
    largest_difference: dict[str, float]
    """Of the statistics of each bucket from those of ONNX Runtime on the CPU, relative to the largest number."""
    rules: list[str]
    """Those of the table that these calls have shown to hold."""


class RecordingAcl:
    """In the place of the module `acl`: passes every call of the table on and notes it."""

    def __init__(self, module: Any, contract: AclContract) -> None:
        self.calls: list[RecordedCall] = []
        self.rt, self.mdl = SimpleNamespace(), SimpleNamespace()
        for call in contract.calls:
            group, _, name = call.name.rpartition(".")
            place = module if not group else getattr(module, group, None)
            if hasattr(place, name):  # what a machine lacks, the adapter finds out
                setattr(self if not group else getattr(self, group), name, self._noted(call, getattr(place, name)))

    def _noted(self, call: Call, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            result = function(*arguments)
            self.calls.append(_recorded(call, arguments, result, threading.current_thread().name))
            return result

        return noted


def differences_from_contract(transcript: Transcript, contract: AclContract) -> list[str]:
    """Every way in which the calls were not as the table says; in order, each once."""
    known = {call.name: call for call in contract.calls}
    codes = {code.code for code in contract.codes}
    found = [f"acl.{name} was never called" for name in known if name not in {call.name for call in transcript.calls}]
    for call in transcript.calls:
        returns = known[call.name].returns
        kinds = call.returned.split(", ")
        if (len(kinds) == 2) != (returns == "value, ret"):
            found.append(f"acl.{call.name} returned ({call.returned}), the table says {returns}")
        elif returns != "value" and kinds[-1] != "int":
            found.append(f"acl.{call.name} returned ({call.returned}), whose code is no number")
        elif call.code and call.name not in transcript.provoked:
            found.append(f"acl.{call.name} returned the code {call.code}")
    found += [
        f"acl.{name} was made to fail and returned {code}, which the table does not have"
        for name, code in transcript.provoked.items()
        if code not in codes
    ]
    return list(dict.fromkeys(found))


def differences_of_transcripts(found: Transcript, earlier: Transcript) -> list[str]:
    """Where, on each thread, the order of the calls, their types or codes begin to differ; and other codes."""
    differences = []
    for thread in dict.fromkeys(call.thread for call in (*found.calls, *earlier.calls)):
        ours, theirs = ([call for call in each.calls if call.thread == thread] for each in (found, earlier))
        pairs = enumerate(zip_longest(ours, theirs))
        first = next(((number, one, other) for number, (one, other) in pairs if one != other), None)
        if first is not None:
            number, one, other = first
            differences.append(f"call {number} on {thread}: {_text(one)}, earlier {_text(other)}")
    return differences + [
        f"{name} made to fail returned {found.provoked.get(name)}, earlier {code}"
        for name, code in earlier.provoked.items()
        if found.provoked.get(name) != code
    ]


def marked_contract(contract: AclContract, transcript: Transcript) -> AclContract:
    """The table with `recorded` on everything that the transcript has shown. Raises ValueError for a stand-in's."""
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


def _marked(entry: Entry, seen: bool) -> Entry:
    return msgspec.structs.replace(entry, evidence="recorded") if seen else entry


def _recorded(call: Call, arguments: Sequence[Any], result: Any, thread: str) -> RecordedCall:
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
