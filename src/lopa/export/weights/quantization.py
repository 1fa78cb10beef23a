"""Which tensors of a bundle become integers: the choice of a user, checked against the plan. Knows names, no values."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from lopa.export.weights.plan import BLOCK, IntegerDtype, WeightPlan
from lopa.runtime.bundle.manifest import Quantization
from lopa.runtime.bundle.network import HEAD
from lopa.runtime.errors import BadInputError


@dataclass(frozen=True)
class QuantizationChoice:
    """What a user asks for. `exclude` are shell patterns of names in the bundle, e.g. layers.*.mlp.down.weight."""

    kind: IntegerDtype
    head: bool = True
    exclude: tuple[str, ...] = ()

    @property
    def record(self) -> Quantization:
        """As the manifest has it."""
        int8 = self.kind == "int8"
        return Quantization(
            kind=self.kind,
            block=None if int8 else BLOCK,
            activation="int8_per_row" if int8 else "none",
            head=self.head,
            excluded=list(self.exclude),
        )


def quantized_plan(plan: WeightPlan, choice: QuantizationChoice) -> WeightPlan:
    """`plan`, with the matrices of the choice marked: those of all layers, and the head if wanted.

    The embedding is looked up, not multiplied, and stays as it is, as do norms and biases. Raises BadInputError for a
    pattern that matches no tensor that would be quantized, when nothing is left to quantize, and for a matrix whose
    inputs cannot be cut into blocks.
    """
    candidates = [weight.name for weight in plan if weight.transposed and (choice.head or weight.name != HEAD)]
    for pattern in choice.exclude:
        if not any(fnmatchcase(name, pattern) for name in candidates):
            raise BadInputError(
                f"--quantize-exclude {pattern!r} matches no tensor that would be quantized",
                expected=f"a pattern of such names as {', '.join(candidates[:2])}, .., {candidates[-1]}",
                remedy="correct the pattern, or leave it out; lopa-export inspect --json lists the names of a bundle",
            )
    chosen = {name for name in candidates if not any(fnmatchcase(name, pattern) for pattern in choice.exclude)}
    if not chosen:
        raise BadInputError(
            f"--quantize-exclude {' '.join(choice.exclude)} leaves no tensor to quantize",
            expected="some matrix that no pattern matches",
            remedy="export with --quantize none",
        )
    marked = [replace(weight, quantized=choice.kind) if weight.name in chosen else weight for weight in plan]
    if choice.kind == "int4":
        _check_blocks(marked)
    return marked


def _check_blocks(plan: WeightPlan) -> None:
    for weight in plan:
        if weight.quantized is not None and weight.shape[-2] % BLOCK:
            raise BadInputError(
                f"{weight.name} has {weight.shape[-2]} inputs",
                expected=f"a multiple of {BLOCK}, the inputs that share an int4 scale",
                remedy=f"export with --quantize int8, or leave it out: --quantize-exclude '{weight.name}'",
            )
