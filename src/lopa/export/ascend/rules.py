"""What ATC would refuse, said before it is called: it takes minutes to come to that, and says less.

Every rule is a pure function. The codes are those that the documentation gives for the fault; a rule without one is of
the documentation alone, and ATC might compile something wrong instead. What cannot occur in an AtcCall has no rule:
several kinds of dynamic shape at once, both precision modes, an unquoted semicolon.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx

from lopa.export.ascend.call import AtcCall
from lopa.export.ascend.inputs import OPEN
from lopa.export.ascend.socs import SOCS
from lopa.export.graph.operator_table import ascend_operators
from lopa.export.graph.portable_lint import MAX_AXES, violations_of_model
from lopa.runtime.errors import BadInputError

MIN_BUCKETS = 2
MAX_DIMS = 128
"""Dims of all inputs together that can be set before a forward: pyACL passes them in an aclmdlIODims of so many."""
_PLAN = "plan again: lopa-export plan BUNDLE --buckets N"
_EXPORT = "export the checkpoint again with --dialect portable or both"
# Rules of the linter that hold for a graph that AMCT has rewritten, and the codes that ATC gives for them. AMCT's own
# operators have no shapes that ONNX could infer, and its weights are not where the exporter puts them.
_AMCT_RULES = ("opset import", "unregistered operator", "unregistered opset")
_LINT_CODES = {
    "opset import": "E16005",
    "unregistered operator": "E16002",
    "unregistered opset": "E16002",
    "index type": "E89999",
}


@dataclass(frozen=True)
class Fault:
    """One thing that ATC would refuse."""

    code: str
    """Its code for it; empty if the documentation names none."""
    found: str
    mend: str

    def __str__(self) -> str:
        return f"{self.found}{f' ({self.code})' if self.code else ''}"


def check_call(call: AtcCall, dtype: str) -> None:
    """Raise BadInputError with everything that ATC would refuse of `call`; `dtype` of the bundle, e.g. float32."""
    _refuse([fault for rule in _RULES for fault in rule(call)] + list(bfloat16_without_units(call, dtype)))


def check_graph(model: onnx.ModelProto, *, int8: bool) -> None:
    """Raise BadInputError with the nodes of `model` that ATC would refuse; int8: AMCT has rewritten it."""
    _refuse(list(faults_of_graph(model, int8=int8)))


def number_of_buckets(call: AtcCall) -> Iterator[Fault]:
    """2 to 100 with --dynamic_dims, 256 on the 950."""
    upper = SOCS[call.soc_version].most_buckets
    if call.tuples and len(call.tuples) < MIN_BUCKETS:
        yield Fault("E10035", f"{len(call.tuples)} bucket with dynamic_dims, which take at least {MIN_BUCKETS}", _PLAN)
    if len(call.tuples) > upper:
        yield Fault("E10036", f"{len(call.tuples)} buckets for {call.soc_version}, which takes at most {upper}", _PLAN)


def ragged_tuples(call: AtcCall) -> Iterator[Fault]:
    """All tuples are equally long."""
    lengths = sorted({len(each) for each in call.tuples})
    if len(lengths) > 1:
        yield Fault("E10037", f"buckets with {' and '.join(map(str, lengths))} numbers", _PLAN)


def repeated_tuples(call: AtcCall) -> Iterator[Fault]:
    """No tuple occurs twice; buckets of different sizes can fold to one."""
    for numbers, count in Counter(call.tuples).items():
        if count > 1:
            yield Fault("E10039", f"{count} buckets with the dims {', '.join(map(str, numbers))}", _PLAN)


def numbers_for_open_axes(call: AtcCall) -> Iterator[Fault]:
    """A tuple has a number for every -1; without buckets there is no -1."""
    open_axes = sum(dim == OPEN for each in call.inputs for dim in each.dims)
    if not call.tuples and open_axes:
        yield Fault("E10001", f"{open_axes} open axes and no buckets", _PLAN)
    if call.tuples and open_axes == 0:
        yield Fault("E10040", "buckets and no open axis", _PLAN)
    elif call.tuples and any(len(each) != open_axes for each in call.tuples):
        lengths = sorted({len(each) for each in call.tuples})
        yield Fault("E10045", f"buckets with {lengths} numbers for {open_axes} open axes", _PLAN)


def sizes_of_inputs(call: AtcCall) -> Iterator[Fault]:
    """At most four axes; every size at least 1, or open."""
    for each in call.inputs:
        if len(each.dims) > MAX_AXES:
            yield Fault("", f"{each.name} has {len(each.dims)} axes; keep to {MAX_AXES}", _EXPORT)
    if any(dim < 1 and dim != OPEN for each in call.inputs for dim in each.dims) or any(
        number < 1 for each in call.tuples for number in each
    ):
        yield Fault("", "a size of zero or less", _PLAN)


def dims_at_run_time(call: AtcCall) -> Iterator[Fault]:
    """With buckets pyACL must be able to pass the dims of all inputs; ATC itself would not notice."""
    if call.tuples and (dims := sum(len(each.dims) for each in call.inputs)) > MAX_DIMS:
        yield Fault("", f"buckets with {dims} dims, of which pyACL sets {MAX_DIMS}", _EXPORT)


def integers_with_buckets(call: AtcCall) -> Iterator[Fault]:
    """Dynamic shapes are not possible for a quantized graph."""
    if call.int8 and call.tuples:
        yield Fault(
            "", "int8 with buckets in one OM (dynamic_dims), which ATC does not take", "an OM of fixed shape for each"
        )


def integers_with_origin(call: AtcCall) -> Iterator[Fault]:
    """A quantized graph must not ask for high precision."""
    if call.int8 and call.precision == "origin":
        yield Fault("", "int8 with precision origin, which ATC does not take", "choose --precision fp16 or bf16")


def bfloat16_without_units(call: AtcCall, dtype: str) -> Iterator[Fault]:
    """310P computes no bfloat16, neither asked for nor in the graph."""
    if SOCS[call.soc_version].bfloat16:
        return
    if call.precision == "bf16":
        yield Fault("", f"precision bf16 for {call.soc_version}, which has no bfloat16", "choose origin or fp16")
    if dtype == "bfloat16":
        yield Fault(
            "",
            f"a bundle in bfloat16 for {call.soc_version}, which has no bfloat16",
            "export the checkpoint with --dtype fp16",
        )


def faults_of_graph(model: onnx.ModelProto, *, int8: bool) -> Iterator[Fault]:
    """Violations of the portable dialect, with ATC's codes; of a graph by AMCT only what the parser would not know."""
    for each in violations_of_model(model, ascend_operators()):
        if not int8 or each.rule in _AMCT_RULES:
            yield Fault(_LINT_CODES.get(each.rule, ""), f"{each.rule}: {each}", _EXPORT)


_RULES: tuple[Callable[[AtcCall], Iterator[Fault]], ...] = (
    number_of_buckets,
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
        expected="what ATC compiles; the codes are those that it would give, and it was not called",
        remedy="; or ".join(dict.fromkeys(fault.mend for fault in faults[:_SHOWN])),
    )
