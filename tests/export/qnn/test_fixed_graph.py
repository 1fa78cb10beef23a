"""The graphs that QNN compiles and their forwards, run by ONNX Runtime's CPU provider in float32."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.export.qnn.fixed_graph import block_matrices, fixed_graph
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket, bucket_from_sizes
from lopa.runtime.bundle.webgpu_twin import reordered_matrices
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.qnn.qnn_forward import QnnForward
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import open_session


@pytest.mark.parametrize(
    ("sizes", "kind", "operators", "tolerance"),
    [
        ((1, 1), "none", {"MatMul"}, 2e-4),
        ((2, 2), "none", {"MatMul"}, 2e-4),
        ((1, 2), "int4", {"MatMulNBits"}, 2e-4),
        ((1, 2), "int8", {"QuantizeLinear", "MatMul"}, 0.15),
    ],
)
def test_forwards_in_parts_match_the_reference(
    sizes: tuple[int, int],
    kind: str,
    operators: set[str],
    tolerance: float,
    tiny_bundle: Path,
    export_tiny: Callable[..., Path],
) -> None:
    """Two requests with three branches do not fit these buckets, so that every forward runs in parts.

    The reference rounds rows of int8 products to 8 bits, the graph to 16.
    """
    bundle = Bundle.open(tiny_bundle if kind == "none" else export_tiny(with_logits=False, quantize=kind))
    buckets = [bucket_from_sizes(Sizes(*sizes, 48, prefix, 32), 1.0) for prefix in (32, 128)]
    dimensions = bundle.manifest.dimensions
    forward = QnnForward(
        {bucket: _opened(bundle, bucket) for bucket in buckets},
        RotaryAngles(dimensions.rotary_size, dimensions.rope_theta),
    )
    pair = HostSession(forward, "qnn", cache_shape_from_manifest(bundle.manifest)), open_session(bundle, "numpy")
    assert {node.op_type for node in fixed_graph(bundle, buckets[0]).graph} >= operators
    rng = np.random.default_rng(5)
    for step in range(3):  # the last prefix does not fit the first bucket
        batch = random_batch(rng, [0, 1], 3, 40, 17, starts=100 + 40 * step)
        ours, right = (sequential(session).forward(batch) for session in pair)
        assert np.abs(ours.topk_logprobs - right.topk_logprobs).max() < tolerance
        assert np.abs(ours.entropy - right.entropy).max() < tolerance
        for request, branch in ((0, 2), (1, 0)):
            rows = (sequential(session).read_rows(request, branch, 40).layers for session in pair)
            assert max(np.abs(one - other).max() for one, other in zip(*rows, strict=True)) < tolerance
            for session in pair:
                sequential(session).commit(request, branch, 30)
    for session in pair:
        session.close()


def _opened(bundle: Bundle, bucket: ShapeBucket) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(bundle.graph.parent.resolve())
    )
    matrices = reordered_matrices(bundle, block_matrices(bundle.manifest))
    if matrices:
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in matrices.values()]
        options.add_external_initializers([*matrices], values)
    graph = ir.to_proto(fixed_graph(bundle, bucket)).SerializeToString()
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
