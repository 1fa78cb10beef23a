"""User's choice of tensors to quantize, checked against the plan. It depends on names, not on values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from lopa.export.weights.plan import BLOCK, IntegerDtype, WeightPlan
from lopa.runtime.bundle.manifest import Calibration, Dialect, Quantization
from lopa.runtime.bundle.network import HEAD
from lopa.runtime.errors import BadInputError


@dataclass(frozen=True)
class QuantizationChoice:
    """Quantization options.

    `exclude` has shell patterns of tensor names in the bundle, e.g. layers.*.mlp.down.weight. `calibrate` is a file of
    prompts for which errors of int4 matrices are made small (lopa.export.weights.calibration_windows).
    """

    kind: IntegerDtype
    head: bool = True
    exclude: tuple[str, ...] = ()
    calibrate: Path | None = None

    def record_for(self, dialects: Sequence[Dialect], calibration: Calibration | None = None) -> Quantization:
        """Return the entry of the manifest. Only standard graphs round activations."""
        int8 = self.kind == "int8"
        return Quantization(
            kind=self.kind,
            block=None if int8 else BLOCK,
            activation="int8_per_row" if int8 and "standard" in dialects else "none",
            head=self.head,
            excluded=list(self.exclude),
            calibration=calibration,
        )


_MATRIX_AXES = 2


def quantized_plan(plan: WeightPlan, choice: QuantizationChoice) -> WeightPlan:
    """Return `plan` with the chosen matrices marked: the matrices of all layers, and the head if requested.

    The embedding (a lookup), routers, norms and biases stay in floating point. Raises BadInputError for a pattern
    without a match, a choice that leaves nothing to quantize, and a matrix whose inputs do not divide into blocks.
    """
    candidates = [
        weight.name
        for weight in plan
        if weight.transposed and not weight.tensor.is_float32 and (choice.head or weight.name != HEAD)
    ]
    for pattern in choice.exclude:
        if not any(fnmatchcase(name, pattern) for name in candidates):
            raise BadInputError(
                f"--quantize-exclude {pattern!r} matches no tensor that would be quantized",
                expected=f"a pattern of such names as {', '.join(candidates[:2])}, .., {candidates[-1]}",
                remedy="correct or remove the pattern; lopa-export inspect --json lists the tensor names of a bundle",
            )
    chosen = {name for name in candidates if not any(fnmatchcase(name, pattern) for pattern in choice.exclude)}
    if not chosen:
        raise BadInputError(
            f"--quantize-exclude {' '.join(choice.exclude)} leaves no tensor to quantize",
            expected="at least one matrix that no pattern matches",
            remedy="export with --quantize none",
        )
    _check_experts(candidates, chosen, choice)
    if choice.calibrate is not None:
        _check_calibration(plan, choice)
    marked = [replace(weight, quantized=choice.kind) if weight.name in chosen else weight for weight in plan]
    if choice.kind == "int4":
        _check_blocks(marked)
    return marked


def _check_experts(candidates: list[str], chosen: set[str], choice: QuantizationChoice) -> None:
    """Raise BadInputError if only some of a layer's expert matrices are chosen, since one operator uses all of them."""
    for name in candidates:
        layer, experts, _ = name.partition(".experts.")
        if experts and name not in chosen and any(each.startswith(layer + experts) for each in chosen):
            raise BadInputError(
                f"--quantize-exclude {' '.join(choice.exclude)} matches only some of the matrices {layer}.experts.*",
                expected="all of a layer's expert matrices, or none",
                remedy=f"exclude all of them: --quantize-exclude '{layer}.experts.*'",
            )


def _check_calibration(plan: WeightPlan, choice: QuantizationChoice) -> None:
    """Raise BadInputError unless calibration can round the matrices of `plan`."""
    if choice.kind != "int4":
        raise BadInputError(
            f"--calibrate with --quantize {choice.kind}",
            expected="--quantize int4: int8 keeps the quality without calibration",
            remedy="drop --calibrate, or quantize to int4",
        )
    stacked = [weight.name for weight in plan if len(weight.parts) > 1 or len(weight.shape) > _MATRIX_AXES]
    if stacked:
        raise BadInputError(
            f"--calibrate for a mixture of experts: {stacked[0]}",
            expected="a model without experts, as most experts would see few calibration rows",
            remedy="drop --calibrate",
        )


def _check_blocks(plan: WeightPlan) -> None:
    for weight in plan:
        if weight.quantized is not None and weight.shape[-2] % BLOCK:
            raise BadInputError(
                f"{weight.name} has {weight.shape[-2]} inputs",
                expected=f"a multiple of {BLOCK}, the inputs that share an int4 scale",
                remedy=f"export with --quantize int8, or exclude it: --quantize-exclude '{weight.name}'",
            )
