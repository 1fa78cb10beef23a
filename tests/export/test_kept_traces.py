"""What stands in for torch's exporter in most tests gives what the exporter gives."""

import onnx_ir as ir
import pytest
from tests.export.kept_traces import traced_by_the_exporter

from lopa.export.graph import trace
from lopa.runtime.bundle.manifest import Dialect, ModelDimensions

ONE = ModelDimensions(
    vocab_size=24,
    hidden_size=32,
    intermediate_size=48,
    layers=1,
    heads=4,
    kv_heads=2,
    head_size=8,
    max_positions=512,
    rope_theta=10000.0,
    rms_norm_eps=1e-6,
)
"""Of tests/export/checkpoints.py, with one layer: other tests need its trace too."""


def _described(model: ir.Model) -> list[object]:
    """All that is in a graph: nodes and attributes in order, constants, values by their places, shapes and types."""
    graph = model.graph
    places: dict[ir.Value, object] = {value: ("input", i) for i, value in enumerate(graph.inputs)}
    for name, value in graph.initializers.items():
        made = name.startswith("val_") and value.const_value is not None  # its number is another in each trace
        places[value] = value.const_value.numpy().tolist() if made else name
    told: list[object] = []
    for number, node in enumerate(graph):
        inputs = [None if value is None else places[value] for value in node.inputs]
        places |= {value: (f"output {i} of a node", number) for i, value in enumerate(node.outputs)}
        attributes = sorted((name, repr(ir.serde.serialize_attribute(each))) for name, each in node.attributes.items())
        types = [(str(value.shape), str(value.type)) for value in node.outputs]
        told.append((node.domain, node.op_type, node.name, inputs, attributes, types))
    told.append([(value.name, places[value], str(value.shape), str(value.type)) for value in graph.outputs])
    return told


@pytest.mark.parametrize("dialect", ["standard", "portable"])
def test_without_logits_it_is_what_the_exporter_makes_without_them(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def described(*, with_logits: bool) -> list[object]:
        return _described(
            trace.graph_from_dimensions(ONE, {}, "weights", dialect=dialect, dtype="float32", with_logits=with_logits)
        )

    assert trace.traced_graph is not traced_by_the_exporter
    ours, longer = described(with_logits=False), described(with_logits=True)
    monkeypatch.setattr(trace, "traced_graph", traced_by_the_exporter)
    assert ours == described(with_logits=False)
    assert ours != longer
