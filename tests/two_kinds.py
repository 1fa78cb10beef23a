"""A network that no checkpoint has yet: one dense layer, then two sparse layers with stacked experts."""

import math
from dataclasses import replace

import msgspec

from lopa.runtime.bundle.manifest import Manifest, ModelDimensions, TensorRecord
from lopa.runtime.bundle.network import LayerSpec, NetworkSpec, TensorSpec, network_from_dimensions

EXPERTS, CHOSEN = 8, 2


def network_of_two_kinds(
    sizes: ModelDimensions, inner: int, *, experts: int = EXPERTS, chosen: int = CHOSEN
) -> NetworkSpec:
    """Return a network with these sizes; in a sparse layer `chosen` of its `experts`, each `inner` wide, compute a
    row."""
    sizes = msgspec.structs.replace(sizes, layers=3)
    network, share = network_from_dimensions(sizes), chosen / experts
    dense = network.layers[0]
    sparse = LayerSpec(
        "sparse",
        {
            **{name: tensor for name, tensor in dense.tensors.items() if not name.startswith("mlp.")},
            "mlp.router.weight": TensorSpec((sizes.hidden_size, experts), "matrix"),
            "mlp.router.bias": TensorSpec((experts,), "bias"),
            "mlp.experts.up.weight": TensorSpec((experts, sizes.hidden_size, inner), "matrix", share),
            "mlp.experts.down.weight": TensorSpec((experts, inner, sizes.hidden_size), "matrix", share),
        },
    )
    return replace(network, layers=(dense, sparse, sparse))


def manifest_of_network(manifest: Manifest, network: NetworkSpec) -> Manifest:
    """Return `manifest` with the tensors of `network` in float32, all at offset 0."""
    records = {
        name: TensorRecord(dtype="float32", shape=list(tensor.shape), offset=0, length=4 * math.prod(tensor.shape))
        for name, tensor in network.tensors.items()
    }
    return msgspec.structs.replace(manifest, dimensions=network.dimensions, tensors=records)
