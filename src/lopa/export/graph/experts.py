"""Router and experts of a sparse layer as readable torch modules.

The experts' products are one node in the traced graph, because a product per expert would take minutes to trace. The
passes of lopa.export.graph.expert_forms replace the node by operators of the dialect.
"""

from collections.abc import Mapping

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.nn import functional

from lopa.export.graph.quantize_pass import QuantizedMatrix, initializer
from lopa.runtime.bundle.manifest import MixtureOfExperts
from lopa.runtime.bundle.network import TensorSpec

_FIRST_MATRIX = 3
"""Number of inputs before the matrices: rows, ids and weights."""


def expert_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes of experts (lopa.export.graph.experts) in their order."""
    return [node for node in model.graph if node.domain == TRACED_DOMAIN and node.op_type == EXPERTS_OPERATOR]


class QuantizedExpertsPass(ir.passes.InPlacePass):
    """Pass that replaces the inputs gate, up and down of experts by (integers, scales) of each, if `matrices` has them.

    Integers are int8 or int4 [E, inputs, outputs], or FP8 [E, outputs, inputs]; scales are [E, outputs] or
    [E, inputs / block, outputs].
    """

    def __init__(self, matrices: Mapping[str, QuantizedMatrix]) -> None:
        super().__init__()
        self._matrices = matrices

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the inputs."""
        nodes = expert_nodes(model)
        modified = [self._quantize(model, node) for node in nodes]
        return ir.passes.PassResult(model, modified=any(modified))

    def _quantize(self, model: ir.Model, node: ir.Node) -> bool:
        """Give quantized matrices to one node. Raises PassError if only some of its matrices are quantized."""
        names = [value.name for value in node.inputs[_FIRST_MATRIX:] if value is not None and value.name is not None]
        found = [self._matrices[name] for name in names if name in self._matrices]
        if not found:
            return False
        if len(found) < len(names):
            raise ir.passes.PassError(f"{node.name} has matrices of two kinds: {names}")
        inputs = list(node.inputs[:_FIRST_MATRIX])
        result = node.outputs[0]
        for name, matrix in zip(names, found, strict=True):
            model.graph.initializers.pop(name)
            inputs += [initializer(model, matrix.integers), initializer(model, matrix.scales)]
        quantized = ir.node(node.op_type, inputs, domain=node.domain, name=node.name)
        new = quantized.outputs[0]
        new.name, new.shape, new.type = result.name, result.shape, result.type
        node.prepend(quantized)
        ir.convenience.replace_all_uses_with(result, new, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        return True


TRACED_DOMAIN, EXPERTS_OPERATOR = "lopa.traced", "Experts"
"""Name of the node: (rows [N, W, H], ids int64 [N, W, k], weights float32 [N, W, k], gate, up, down) to [N, W, H]."""
_EXCLUDED = -1e30
"""Score of experts in closed groups, smaller than any score with a bias."""
_MIN_SUM = 1e-20
"""Added to the sum that normalizes scores."""


class ExpertRouter(nn.Module):
    """Choice of the experts that compute each row, and their weights, in float32."""

    def __init__(self, tensors: Mapping[str, TensorSpec], moe: MixtureOfExperts) -> None:
        super().__init__()
        self.moe = moe
        self.weight = nn.Parameter(torch.empty(tensors["mlp.router.weight"].shape, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty(moe.experts, dtype=torch.float32)) if moe.bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts' ids, int64 [N, W, k], and weights, float32 [N, W, k], of the rows [N, W, H]."""
        logits = x.to(self.weight.dtype) @ self.weight
        scores = logits.sigmoid() if self.moe.score == "sigmoid" else logits.softmax(dim=-1)
        ranked = scores if self.bias is None else scores + self.bias
        if self.moe.groups_per_token < self.moe.groups:
            ranked = self._within_groups(ranked)
        ids = self.best(ranked, self.moe.experts_per_token)
        weights = self.scores_of(scores, ids)
        if self.moe.normalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + _MIN_SUM)
        return ids, weights if self.moe.scale == 1 else weights * self.moe.scale

    def best(self, scores: Tensor, count: int) -> Tensor:
        """Return the ids of the `count` largest of the scores [.., n], largest first, int64 [.., count]."""
        return scores.topk(count, dim=-1).indices

    def scores_of(self, scores: Tensor, ids: Tensor) -> Tensor:
        """Return the scores [.., E] at `ids` [.., k]."""
        return scores.gather(-1, ids)

    def is_number(self, ids: Tensor, count: int) -> Tensor:
        """Return 1 where `ids` [.., k] equal a number below `count`, and 0 elsewhere, [.., k, count]."""
        numbers = torch.arange(count, device=ids.device)
        return (ids.unsqueeze(-1) == numbers).to(self.weight.dtype)

    def _within_groups(self, ranked: Tensor) -> Tensor:
        """Return the scores [N, W, E] with the experts of all but the best groups excluded.

        The rank of a group is the sum of its two best scores.
        """
        groups = ranked.reshape(*ranked.shape[:2], self.moe.groups, -1)
        sums = groups.topk(2, dim=-1).values.sum(dim=-1)
        is_open = self.is_number(self.best(sums, self.moe.groups_per_token), self.moe.groups).sum(dim=-2)
        return torch.where(is_open.unsqueeze(-1) > 0, groups, _EXCLUDED).reshape(ranked.shape)


class StackedMatrix(nn.Module):
    """Matrices of all experts, [E, inputs, outputs]."""

    def __init__(self, tensor: TensorSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(tensor.shape, dtype=dtype))


class Experts(nn.Module):
    """Gated MLPs, of which a router chooses some for every row."""

    def __init__(self, tensors: Mapping[str, TensorSpec], dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = StackedMatrix(tensors["mlp.experts.gate.weight"], dtype)
        self.up = StackedMatrix(tensors["mlp.experts.up.weight"], dtype)
        self.down = StackedMatrix(tensors["mlp.experts.down.weight"], dtype)

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs for the rows [N, W, H].

        `ids` and `weights` are [N, W, k]. The sum is computed in the weights' type.
        """
        gate, up, down = self.gate.weight, self.up.weight, self.down.weight
        if torch.onnx.is_in_onnx_export():
            inputs = (x, ids, weights, gate, up, down)
            operator = f"{TRACED_DOMAIN}::{EXPERTS_OPERATOR}"
            return torch.onnx.ops.symbolic(operator, inputs, dtype=x.dtype, shape=x.shape, version=1)
        rows, total = x.flatten(0, 1), torch.zeros(x.shape, dtype=weights.dtype, device=x.device).flatten(0, 1)
        for expert in torch.unique(ids).tolist():
            row, place = (ids.flatten(0, 1) == expert).nonzero(as_tuple=True)
            inner = functional.silu(rows[row] @ gate[expert]) * (rows[row] @ up[expert])
            total.index_add_(0, row, (inner @ down[expert]).to(total.dtype) * weights.flatten(0, 1)[row, place, None])
        return total.to(x.dtype).reshape(x.shape)
