"""Chips that ATC compiles for, and checks before a call of ATC, which takes minutes to fail and reports less.

The codes are from ATC's documentation of the fault. A fault without a code is also from the documentation, but ATC may
accept it and build a wrong model. Other documented faults cannot occur in a call by calls_from_inputs. Its tuples are
distinct, two or more, and have one number for every dynamic axis.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from lopa.export.ascend.call import AtcCall
from lopa.export.graph.portable_lint import violations_of_model
from lopa.runtime.errors import BadInputError


@dataclass(frozen=True)
class Soc:
    """Properties of a chip that affect compilation."""

    name: str
    bfloat16: bool
    max_buckets: int


_MAX_BUCKETS = 100
_FAMILIES = (
    # (names, bfloat16, maximum number of shape buckets). Names of A2, A3 and 310P are from the graph engine's source.
    # For the 950, only names that other public source code mentions are listed.
    (("Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1"), True, _MAX_BUCKETS),
    (tuple(f"Ascend910_{number}" for number in (9362, 9363, 9372, 9381, 9382, 9391, 9392)), True, _MAX_BUCKETS),
    (("Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7"), False, _MAX_BUCKETS),
    (("Ascend950PR_9579", "Ascend950PR_9589", "Ascend950PR_9599"), True, 256),
)
SOCS = {name: Soc(name, bfloat16, limit) for names, bfloat16, limit in _FAMILIES for name in names}


def soc_from_name(name: str) -> Soc:
    """Return the chip called `name`. Raises BadInputError, with the closest names, for an unknown one."""
    if name in SOCS:
        return SOCS[name]
    short_names = {known.lower().removeprefix("ascend"): known for known in SOCS}
    received = name.lower().removeprefix("ascend")
    near = [short_names[each] for each in difflib.get_close_matches(received, short_names, n=3, cutoff=0.6)]
    raise BadInputError(
        f"unknown soc version {name!r}",
        expected=("perhaps " + ", ".join(near)) if near else "one of " + ", ".join(SOCS),
        remedy="use the name from `npu-smi info`, prefixed with Ascend; on A3 (910C) the chip's name, an underscore "
        "and the NPU's name, e.g. Ascend910_9392",
    )


_PLAN = "plan again: lopa-export plan BUNDLE --buckets N"
_EXPORT = "export the checkpoint again with --dialect portable or both"
# Linter rules that apply to a graph rewritten by AMCT, with ATC's codes. Other rules do not apply, because ONNX cannot
# infer shapes for AMCT's own operators, and AMCT places weights differently than the exporter.
_AMCT_RULES = ("opset import", "unregistered operator", "unregistered opset")
_LINT_CODES = {
    "opset import": "E16005",
    "unregistered operator": "E16002",
    "unregistered opset": "E16002",
    "index type": "E89999",
}


@dataclass(frozen=True)
class Fault:
    """A problem that ATC would reject."""

    code: str
    """ATC's code; empty if the documentation names none."""
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.found}{f' ({self.code})' if self.code else ''}"


def check_call(call: AtcCall, dtype: str) -> None:
    """Raise BadInputError with all faults of `call`; `dtype` is the bundle's, e.g. float32."""
    soc, count, faults = SOCS[call.soc_version], len(call.tuples), []
    if count > soc.max_buckets:
        faults.append(Fault("E10036", f"{count} shape buckets for {soc.name}, whose limit is {soc.max_buckets}", _PLAN))
    if call.int8 and call.precision == "origin":
        remedy = "use --precision fp16 or bf16"
        faults.append(Fault("", "int8 with precision origin, which ATC does not support", remedy))
    if call.precision == "bf16" and not soc.bfloat16:
        remedy = "use --precision origin or fp16"
        faults.append(Fault("", f"precision bf16 for {soc.name}, which has no bfloat16", remedy))
    if dtype == "bfloat16" and not soc.bfloat16:
        remedy = "export the checkpoint with --dtype float16"
        faults.append(Fault("", f"a bundle in bfloat16 for {soc.name}, which has no bfloat16", remedy))
    _refuse(faults)


def check_graph(model: onnx.ModelProto, *, int8: bool) -> None:
    """Raise BadInputError with the nodes of `model` that ATC would reject, with ATC's codes.

    `int8`: AMCT has quantized the graph. Only the rules of ATC's parser are then checked.
    """
    _refuse(
        [
            Fault(_LINT_CODES.get(each.rule, ""), f"{each.rule}: {each}", _EXPORT)
            for each in violations_of_model(model)
            if not int8 or each.rule in _AMCT_RULES
        ]
    )


_SHOWN = 3


def _refuse(faults: Sequence[Fault]) -> None:
    if not faults:
        return
    more = f" (and {len(faults) - _SHOWN} more)" if len(faults) > _SHOWN else ""
    raise BadInputError(
        "; ".join(map(str, faults[:_SHOWN])) + more,
        expected="input that ATC can compile (checked without calling ATC; the codes are ATC's)",
        remedy="; or ".join(dict.fromkeys(fault.remedy for fault in faults[:_SHOWN])),
    )
