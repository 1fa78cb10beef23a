"""The network's specification, compared with a bundle's tensors, and the operations per row."""

from pathlib import Path

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.network import HEAD, TensorSpec, network_from_dimensions


def test_operations_per_row() -> None:
    assert TensorSpec((192, 32), "matrix").row_operations == 2 * 192 * 32
    assert TensorSpec((8, 192, 32), "matrix", row_share=1 / 4).row_operations == 2 * 2 * 192 * 32
    assert TensorSpec((192, 32), "embedding").row_operations == 0
    assert TensorSpec((192,), "bias").row_operations == 0
    assert TensorSpec((192,), "norm").row_operations == 0


def test_tiny_network_matches_its_bundle(tiny_bundle: Path) -> None:
    """The order is the file order, which determines offsets."""
    manifest = Bundle.open(tiny_bundle).manifest
    network = network_from_dimensions(manifest.dimensions)
    assert [(name, list(tensor.shape)) for name, tensor in network.tensors.items()] == [
        (name, record.shape) for name, record in manifest.tensors.items()
    ]
    operations = {name: tensor.row_operations for name, tensor in network.tensors.items()}
    assert operations.pop(HEAD) == 393_216
    assert sum(operations.values()) == 3_932_160
