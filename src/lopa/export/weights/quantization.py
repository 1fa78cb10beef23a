"""User's choice of tensors to quantize, checked against the plan. It depends on names, not on values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from lopa.export.weights.plan import BLOCK, QuantizedKind, WeightPlan
from lopa.runtime.bundle.manifest import Calibration, Dialect, Quantization
from lopa.runtime.bundle.network import HEAD
from lopa.runtime.errors import BadInputError


@dataclass(frozen=True)
class QuantizationChoice:
    """Quantization options.

    `exclude` has shell patterns of tensor names in the bundle, e.g. layers.*.mlp.down.weight. `calibrate` is a file of
    prompts for which errors of int4 and FP8 matrices are made small (lopa.export.weights.calibration_windows).
    """

    kind: QuantizedKind
    head: bool | None = None
    """None quantizes the head to integers, but not to FP8."""
    exclude: tuple[str, ...] = ()
    calibrate: Path | None = None

    def record_for(self, dialects: Sequence[Dialect], calibration: Calibration | None = None) -> Quantization:
        """Return the entry of the manifest. Only standard graphs round activations."""
        return Quantization(
            kind=self.kind,
            block=BLOCK if self.kind == "int4" else None,
            activation=_ACTIVATIONS[self.kind] if "standard" in dialects else "none",
            head=self.with_head,
            excluded=list(self.exclude),
            calibration=calibration,
        )

    @property
    def with_head(self) -> bool:
        """True if the head is quantized."""
        return self.kind != "fp8" if self.head is None else self.head


_ACTIVATIONS: dict[QuantizedKind, Literal["none", "int8_per_row", "fp8_per_row"]] = {
    "int8": "int8_per_row",
    "int4": "none",
    "fp8": "fp8_per_row",
}
_MATRIX_AXES = 2
_FP8_MULTIPLE = 16
"""Sizes of FP8 matrices are multiples of it, because cuBLASLt multiplies no others."""


def quantized_plan(plan: WeightPlan, choice: QuantizationChoice) -> WeightPlan:
    """Return `plan` with the chosen matrices marked: the matrices of all layers, and the head if requested.

    The embedding (a lookup), routers, norms and biases stay in floating point. Raises BadInputError for a pattern
    without a match, a choice that leaves nothing to quantize, and a matrix whose inputs do not divide into blocks.
    """
    candidates = [
        weight.name
        for weight in plan
        if weight.transposed and not weight.tensor.is_float32 and (choice.with_head or weight.name != HEAD)
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
    _check_sizes(marked)
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
    if choice.kind == "int8":
        raise BadInputError(
            f"--calibrate with --quantize {choice.kind}",
            expected="--quantize int4 or fp8: int8 keeps the quality without calibration",
            remedy="drop --calibrate, or quantize to int4 or fp8",
        )
    stacked = [weight.name for weight in plan if len(weight.parts) > 1 or len(weight.shape) > _MATRIX_AXES]
    if stacked:
        raise BadInputError(
            f"--calibrate for a mixture of experts: {stacked[0]}",
            expected="a model without experts, as most experts would see few calibration rows",
            remedy="drop --calibrate",
        )


def _check_sizes(plan: WeightPlan) -> None:
    for weight in plan:
        inputs, outputs = weight.shape[-2:] if weight.quantized is not None else (0, 0)
        if weight.quantized == "int4" and inputs % BLOCK:
            received, expected = f"{inputs} inputs", f"a multiple of {BLOCK}, the inputs that share an int4 scale"
        elif weight.quantized == "fp8" and (inputs % _FP8_MULTIPLE or outputs % _FP8_MULTIPLE):
            received = f"{inputs} inputs and {outputs} outputs"
            expected = f"multiples of {_FP8_MULTIPLE}, which GPUs multiply in FP8"
        else:
            continue
        raise BadInputError(
            f"{weight.name} has {received}",
            expected=expected,
            remedy=f"export with --quantize int8, or exclude it: --quantize-exclude '{weight.name}'",
        )
