"""Chips that ATC compiles for, and checks before a call of ATC, which takes minutes to fail and reports less.

Every rule is a pure function. The codes are from ATC's documentation of the fault. A rule without a code is also from
the documentation, but ATC may accept the fault and build a wrong model. Some faults cannot occur in an
AtcCall and have no rule: several kinds of dynamic shapes, two precision modes, an unquoted semicolon.
"""

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx

from lopa.export.ascend.call import AtcCall
from lopa.export.ascend.inputs import OPEN
from lopa.export.graph.portable_lint import MAX_AXES, violations_of_model
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


MIN_BUCKETS = 2
MAX_DIMS = 128
"""Maximum number of dims of all inputs that can be set before a forward, the size of pyACL's aclmdlIODims."""
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
    _refuse([fault for rule in _RULES for fault in rule(call)] + list(bfloat16_without_units(call, dtype)))


def check_graph(model: onnx.ModelProto, *, int8: bool) -> None:
    """Raise BadInputError with the nodes of `model` that ATC would reject. `int8`: AMCT has quantized the graph."""
    _refuse(list(faults_of_graph(model, int8=int8)))


def bucket_count(call: AtcCall) -> Iterator[Fault]:
    """Require 2 to 100 shape buckets with --dynamic_dims, at most 256 on the 950."""
    limit = SOCS[call.soc_version].max_buckets
    count = len(call.tuples)
    if call.tuples and count < MIN_BUCKETS:
        yield Fault("E10035", f"{count} shape bucket with dynamic_dims, which requires {MIN_BUCKETS} or more", _PLAN)
    if count > limit:
        yield Fault("E10036", f"{count} shape buckets for {call.soc_version}, whose limit is {limit}", _PLAN)


def ragged_tuples(call: AtcCall) -> Iterator[Fault]:
    """Require tuples of equal length."""
    lengths = sorted({len(each) for each in call.tuples})
    if len(lengths) > 1:
        yield Fault("E10037", f"shape buckets with {' and '.join(map(str, lengths))} numbers", _PLAN)


def repeated_tuples(call: AtcCall) -> Iterator[Fault]:
    """Require distinct tuples. Shape buckets of different sizes can have the same tuple."""
    for numbers, count in Counter(call.tuples).items():
        if count > 1:
            yield Fault("E10039", f"{count} shape buckets with the dims {', '.join(map(str, numbers))}", _PLAN)


def numbers_for_open_axes(call: AtcCall) -> Iterator[Fault]:
    """Require tuples with one number per -1, and no -1 without shape buckets."""
    open_axes = sum(dim == OPEN for each in call.inputs for dim in each.dims)
    if not call.tuples and open_axes:
        yield Fault("E10001", f"{open_axes} dynamic axes without shape buckets", _PLAN)
    if call.tuples and open_axes == 0:
        yield Fault("E10040", "shape buckets without a dynamic axis", _PLAN)
    elif call.tuples and any(len(each) != open_axes for each in call.tuples):
        lengths = sorted({len(each) for each in call.tuples})
        yield Fault("E10045", f"shape buckets with {lengths} numbers for {open_axes} dynamic axes", _PLAN)


def sizes_of_inputs(call: AtcCall) -> Iterator[Fault]:
    """Require at most four axes, and sizes that are at least 1 or dynamic."""
    for each in call.inputs:
        if len(each.dims) > MAX_AXES:
            yield Fault("", f"{each.name} has {len(each.dims)} axes, more than {MAX_AXES}", _EXPORT)
    if any(dim < 1 and dim != OPEN for each in call.inputs for dim in each.dims) or any(
        number < 1 for each in call.tuples for number in each
    ):
        yield Fault("", "a size of zero or less", _PLAN)


def dims_at_run_time(call: AtcCall) -> Iterator[Fault]:
    """Require dims of all inputs that fit pyACL's structure, which ATC does not check."""
    if call.tuples and (dims := sum(len(each.dims) for each in call.inputs)) > MAX_DIMS:
        yield Fault("", f"shape buckets with {dims} dims, more than the {MAX_DIMS} of pyACL", _EXPORT)


def integers_with_buckets(call: AtcCall) -> Iterator[Fault]:
    """Require fixed shapes for a quantized graph."""
    if call.int8 and call.tuples:
        yield Fault("", "int8 with dynamic_dims, which ATC does not support", "compile one OM of fixed shape for each")


def integers_with_origin(call: AtcCall) -> Iterator[Fault]:
    """Reject the precision `origin` for a quantized graph."""
    if call.int8 and call.precision == "origin":
        yield Fault("", "int8 with precision origin, which ATC does not support", "use --precision fp16 or bf16")


def bfloat16_without_units(call: AtcCall, dtype: str) -> Iterator[Fault]:
    """Require chips with bfloat16 units (not 310P) for bfloat16 as the precision or in the graph."""
    if SOCS[call.soc_version].bfloat16:
        return
    if call.precision == "bf16":
        yield Fault(
            "", f"precision bf16 for {call.soc_version}, which has no bfloat16", "use --precision origin or fp16"
        )
    if dtype == "bfloat16":
        yield Fault(
            "",
            f"a bundle in bfloat16 for {call.soc_version}, which has no bfloat16",
            "export the checkpoint with --dtype float16",
        )


def faults_of_graph(model: onnx.ModelProto, *, int8: bool) -> Iterator[Fault]:
    """Yield violations of the portable dialect with ATC's codes. With `int8`, check only the rules of ATC's parser."""
    for each in violations_of_model(model):
        if not int8 or each.rule in _AMCT_RULES:
            yield Fault(_LINT_CODES.get(each.rule, ""), f"{each.rule}: {each}", _EXPORT)


_RULES: tuple[Callable[[AtcCall], Iterator[Fault]], ...] = (
    bucket_count,
    ragged_tuples,
    repeated_tuples,
    numbers_for_open_axes,
    sizes_of_inputs,
    dims_at_run_time,
    integers_with_buckets,
    integers_with_origin,
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
