"""Bundles in bfloat16: numpy and CUDA compute them, ONNX Runtime on CPUs does not."""

from dataclasses import astuple, dataclass
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
from tests.runtime.cuda.hardware import devices_or_skip
from tests.runtime.random_windows import random_batch
from tests.runtime.sequential import sequential

from lopa.cli.main import main
from lopa.export.verify.session_check import NumpyReference, report_from_session
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.contract import Float32, Statistics, float32_from_stored, stored_dtype, stored_from_float32
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.onnxruntime_session import OnnxRuntimeBinding
from lopa.runtime.sessions.session import Session, open_session


@pytest.fixture(scope="module")
def bundle(tiny_bfloat16: Path) -> Bundle:
    return Bundle.open(tiny_bfloat16)


def test_weights_are_rounded_float32_weights(bundle: Bundle, tiny_bundle: Path) -> None:
    exact, rounded = weights_from_bundle(Bundle.open(tiny_bundle)), weights_from_bundle(bundle)
    assert bundle.weights.stat().st_size < 0.51 * Bundle.open(tiny_bundle).weights.stat().st_size
    for name, values in exact.items():
        expected = stored_from_float32(values.astype(np.float32), stored_dtype("bfloat16"))
        np.testing.assert_array_equal(rounded[name], float32_from_stored(expected))


@dataclass(frozen=True)
class Differences:
    """Differences of two sessions over three windows, each committed by both. They average over hundreds of values,
    because the largest one of a right computation is not smaller than that of a wrong one."""

    logprobs: float
    """Root mean square, relative to the expected values'."""
    entropy: float
    """Mean absolute difference in nats."""
    rows: float
    """Root mean square of a branch's keys or values in a layer, relative to the expected values'. It is the largest of
    all layers and branches."""
    tokens: int
    """Number of other best tokens where the best one is expected to be ahead by more than a nat."""

    def within(self, bound: "Differences") -> bool:
        """Return True if no difference exceeds the bound's. NaN is not within."""
        return all(found <= most for found, most in zip(astuple(self), astuple(bound), strict=True))


BOUND = Differences(logprobs=0.035, entropy=0.045, rows=0.025, tokens=2)
"""Bound for a right computation in bfloat16, compared with float32 arithmetic on the same rounded weights and rows.

The ROUNDINGS reach 0.0185, 0.0256 and 0.0157 with the seeds 0 to 2 of the tests, and no other token. The inputs of
some seeds magnify rounding: over 96 more seeds they reach 0.047, 0.041, 0.019 and four tokens. The seeds are
therefore fixed. Each wrong graph of WRONG exceeds a bound; their smallest differences that do are 0.0388, 0.0581 and
0.0463. A mistake that changes less than rounding is not seen. Examples are an eps of 0.001, and a scale 30 % too
large in the last layer.
"""


def differences(engine: Session, reference: Session, *, seed: int = 0) -> Differences:
    """Return the differences of `engine`, whose rows are bfloat16, from `reference`."""
    rng = np.random.default_rng(seed)
    statistics, rows = list[tuple[Statistics, Statistics]](), list[float]()
    for start in (0, 30, 60):
        batch = random_batch(rng, [1], 3, 30, 30, starts=start)
        statistics.append((sequential(engine).forward(batch), sequential(reference).forward(batch)))
        for branch in range(3):
            found, expected = (
                sequential(engine).read_rows(1, branch, 30),
                sequential(reference).read_rows(1, branch, 30),
            )
            assert all(array.dtype == np.uint16 for array in found.layers)
            for array, other in zip(found.layers, expected.layers, strict=True):
                rows.append(_relative(float32_from_stored(array), float32_from_stored(other)))
        sequential(engine).commit(1, 2, 30)
        sequential(reference).commit(1, 2, 30)
    assert engine.prefix_length(1) == 90
    engine.free(1)
    reference.free(1)
    logprobs = [np.stack([each.topk_logprobs for each in pair]) for pair in statistics]
    entropy = [np.abs(found.entropy - expected.entropy) for found, expected in statistics]
    others = [
        (found.topk_ids[..., 0] != expected.topk_ids[..., 0])
        & (expected.topk_logprobs[..., 0] - expected.topk_logprobs[..., 1] > 1)
        for found, expected in statistics
    ]
    return Differences(
        logprobs=_relative(*np.concatenate(logprobs, axis=1)),
        entropy=float(np.mean(entropy)),
        rows=max(rows),
        tokens=int(np.sum(others)),
    )


def _relative(found: Float32, expected: Float32) -> float:
    return float(np.sqrt(np.square(found - expected).sum() / np.square(expected).sum()))


def test_numpy_computes_bfloat16(bundle: Bundle, tiny_bundle: Path) -> None:
    """The result is close to the float32 bundle. Weights and cache rows have eight bits of precision."""
    found = differences(open_session(bundle, "numpy"), open_session(Bundle.open(tiny_bundle), "numpy"))
    assert found.within(BOUND), found


def test_numpy_is_within_the_tolerance_of_verify(bundle: Bundle) -> None:
    session = open_session(bundle, "numpy")
    report = report_from_session(session, bundle.manifest, [NumpyReference(bundle)])
    assert report.ok
    errors = {error.output: error.difference.relative for error in report.errors}
    assert errors["entropy"] > 1e-4  # rounded rows are visible


def test_cpu_raises_and_names_a_remedy(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInputError, match="a bundle in bfloat16") as raised:
        open_session(bundle, "cpu")
    assert "--dtype float32 or float16, or use --device cuda:N, openvino:CPU or numpy" in raised.value.remedy
    for change, devices in (({"plugins": ["x"]}, "cuda:N or numpy"), ({"dialect": "portable"}, "numpy")):
        assert msgspec.structs.replace(bundle.manifest, **change).bfloat16_devices == devices
    with pytest.raises(SystemExit) as ended:
        main(["generate", str(bundle.path), "a prompt", "--device", "cpu"])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert "bfloat16" in printed.err
    assert "Traceback" not in printed.err
    # This check fails as soon as ONNX Runtime supports bfloat16. Then the error above can be removed.
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        ort.InferenceSession(bundle.graph, providers=["CPUExecutionProvider"])


def test_bfloat16_arrays_are_bound_unchanged() -> None:
    """Use a graph of Cast, the only operator that has bfloat16 on CPUs."""
    onnx_ir = pytest.importorskip("onnx_ir")
    onnx_proto = pytest.importorskip("onnx_ir.serde")
    types = [onnx_ir.DataType.BFLOAT16, onnx_ir.DataType.FLOAT, onnx_ir.DataType.BFLOAT16]
    values = [
        onnx_ir.Value(name=name, shape=onnx_ir.Shape([3, 4]), type=onnx_ir.TensorType(dtype))
        for name, dtype in zip(("words", "wide", "again"), types, strict=True)
    ]
    nodes = [
        onnx_ir.Node("", "Cast", [values[i]], [onnx_ir.AttrInt64("to", types[i + 1])], outputs=[values[i + 1]])
        for i in range(2)
    ]
    graph = onnx_ir.Graph([values[0]], values[1:], nodes=nodes, opset_imports={"": 23}, name="casts")
    model = onnx_proto.serialize_model(onnx_ir.Model(graph, ir_version=10)).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    words = stored_from_float32(
        np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32), stored_dtype("bfloat16")
    )
    wide, again = np.empty((3, 4), np.float32), np.zeros((3, 4), np.uint16)
    binding = OnnxRuntimeBinding(session)
    binding.bind_inputs([("words", binding.handle_of(words))])
    binding.bind_outputs([("wide", binding.handle_of(wide)), ("again", binding.handle_of(again))])
    binding.run()
    np.testing.assert_array_equal(wide, float32_from_stored(words))
    np.testing.assert_array_equal(again, words)


@pytest.mark.cuda
def test_cuda_computes_bfloat16(bundle: Bundle) -> None:
    devices_or_skip()
    session = open_session(bundle, "cuda:0")
    found = differences(session, open_session(bundle, "numpy"))
    session.close()
    assert found.within(BOUND), found
