"""Cached traces equal the traces of torch's exporter."""

from importlib.metadata import version

import msgspec
import onnx_ir as ir
import pytest
from tests.export import kept_traces
from tests.export.kept_traces import traced_by_the_exporter

from lopa.export.graph import torch_graph
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.contract.model_part import ModelPart, whole_model

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
"""Dimensions of the checkpoint in tests/export/checkpoints.py with one layer, whose trace other tests need too."""


def _described(model: ir.Model) -> list[object]:
    """Return all content of a graph: nodes and attributes in order, constants, and values by place, shape and type."""
    graph = model.graph
    places: dict[ir.Value, object] = {value: ("input", i) for i, value in enumerate(graph.inputs)}
    for name, value in graph.initializers.items():
        made = name.startswith("val_") and value.const_value is not None  # its number differs between traces
        places[value] = value.const_value.numpy().tolist() if made else name
    content: list[object] = []
    for number, node in enumerate(graph):
        inputs = [None if value is None else places[value] for value in node.inputs]
        places |= {value: (f"output {i} of a node", number) for i, value in enumerate(node.outputs)}
        attributes = sorted((name, repr(ir.serde.serialize_attribute(each))) for name, each in node.attributes.items())
        types = [(str(value.shape), str(value.type)) for value in node.outputs]
        content.append((node.domain, node.op_type, node.name, inputs, attributes, types))
    content.append([(value.name, places[value], str(value.shape), str(value.type)) for value in graph.outputs])
    return content


@pytest.mark.slow
def test_a_cached_trace_without_logits_equals_the_exporter_s(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = msgspec.structs.replace(ONE, layers=2)

    def described(*, with_logits: bool) -> list[object]:
        made = torch_graph.graph_from_dimensions(
            sizes, {}, "weights", dtype="float32", with_logits=with_logits, part=ModelPart(1, 2, 2)
        )
        return _described(made)

    assert torch_graph.traced_graph is not traced_by_the_exporter
    ours, longer = described(with_logits=False), described(with_logits=True)
    monkeypatch.setattr(torch_graph, "traced_graph", traced_by_the_exporter)
    assert ours == described(with_logits=False)
    assert ours != longer


ARGUMENTS = (ONE, "standard", "float32", whole_model(1))


def test_a_trace_belongs_to_its_arguments_code_and_versions(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(kept_traces.basis.cache_clear)
    name = kept_traces.trace_name(*ARGUMENTS)
    changed = [
        (msgspec.structs.replace(ONE, rms_norm_eps=1e-7), *ARGUMENTS[1:]),
        (ONE, "portable", *ARGUMENTS[2:]),
        (ONE, "standard", "float16", ARGUMENTS[3]),
        (msgspec.structs.replace(ONE, layers=2), *ARGUMENTS[1:3], ModelPart(0, 1, 2)),
    ]
    assert len({name, *(kept_traces.trace_name(*each) for each in changed)}) == 5
    names = {name}
    for attribute, value in (
        ("version", lambda library: "2.0" if library == "torch" else version(library)),
        ("SOURCES", kept_traces.SOURCES[1:]),
        ("TOP_K", 9),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(kept_traces, attribute, value)
            kept_traces.basis.cache_clear()
            names.add(kept_traces.trace_name(*ARGUMENTS))
    kept_traces.basis.cache_clear()
    assert len(names) == 4
    assert kept_traces.trace_name(*ARGUMENTS) == name
