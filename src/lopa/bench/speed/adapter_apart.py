"""The adapter beside the matrices that it changes, as the published loop runs it, in place of merged into them."""

from torch import Tensor, nn

from lopa.bench.speed.eager_model import EagerModel, reference_names
from lopa.export.source import Source
from lopa.runtime.errors import BadInputError


class LowRankLinear(nn.Module):
    """x W' + scale * (x A') B', W [outputs, inputs], A [rank, inputs], B [outputs, rank]: two products and a sum more
    than nn.Linear has where the adapter is merged."""

    def __init__(self, base: nn.Linear, down: Tensor, up: Tensor, scale: float) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Parameter(down, requires_grad=False), nn.Parameter(up, requires_grad=False)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        added: Tensor = nn.functional.linear(nn.functional.linear(x, self.down), self.up) * self.scale
        product: Tensor = self.base(x)
        return product + added


def put_adapter_apart(model: EagerModel, source: Source) -> int:
    """Take the adapter out of the matrices of a merged `model` of `source` and run it beside them.

    Return how many there are. Raises BadInputError for no adapter, and for one that replaces matrices whole.
    """
    names = reference_names(source)
    apart = 0
    for planned in source.planned:
        product = source.adapter.products.get(planned.source)
        if product is None:
            continue
        path, _, leaf = names[planned.name].removesuffix(".weight").rpartition(".")
        parent = model.network.get_submodule(path)
        linear = getattr(parent, leaf)
        stored = source.adapter.replaced.get(planned.source, source.stored[planned.source]).read()
        linear.weight.data = stored.to(linear.weight)
        down, up = (part.read().to(linear.weight) for part in (product.down, product.up))
        setattr(parent, leaf, LowRankLinear(linear, down, up, product.scale))
        apart += 1
    if not apart:
        raise BadInputError(
            "an eager loop with its adapter apart, and no adapter with matrices of low rank",
            expected="the checkpoint and the LoRA adapter that the bundle was made from",
            remedy="give --lora, or leave --adapter-apart out",
        )
    return apart
