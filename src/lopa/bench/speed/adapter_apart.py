"""Unmerged adapters, computed separately from their matrices as in the published loop."""

from torch import Tensor, nn

from lopa.bench.speed.eager_model import EagerModel, reference_names
from lopa.export.source import ExportSource
from lopa.runtime.errors import BadInputError


class LowRankLinear(nn.Module):
    """nn.Linear plus a low-rank adapter: x W' + scale * (x A') B'.

    W [outputs, inputs], A [rank, inputs], B [outputs, rank]. Compared with a merged adapter, it needs two more products
    and a sum.
    """

    def __init__(self, base: nn.Linear, down: Tensor, up: Tensor, scale: float) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Parameter(down, requires_grad=False), nn.Parameter(up, requires_grad=False)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        added: Tensor = nn.functional.linear(nn.functional.linear(x, self.down), self.up) * self.scale
        product: Tensor = self.base(x)
        return product + added


def unmerge_adapter(model: EagerModel, source: ExportSource) -> int:
    """Unmerge the adapter of `model`, which was built from `source`.

    Returns the number of matrices. Raises BadInputError without an adapter, and for one that replaces whole matrices.
    """
    names = reference_names(source)
    count = 0
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
        count += 1
    if not count:
        raise BadInputError(
            "--adapter-apart without a low-rank adapter",
            expected="the checkpoint and the LoRA adapter of the bundle",
            remedy="add --lora, or omit --adapter-apart",
        )
    return count
