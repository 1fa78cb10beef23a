"""The whole decoder on "tensorrt:N", over stand-ins for TensorRT's runtime and the CUDA runtime."""

import hashlib
import json
import logging
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.buckets import bucket
from tests.conformance.recorded import assert_reproduced
from tests.runtime.cuda.stand_in_cudart import cudaError_t
from tests.runtime.cuda.stand_in_graphs import StandInGraphs
from tests.runtime.device_contract import DeviceContract, Devices
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential
from tests.runtime.tensorrt.machines import built, with_verified
from tests.runtime.tensorrt.stand_in_tensorrt import stand_in_tensorrt

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError, EngineFailedError
from lopa.runtime.sessions.session import open_session
from lopa.runtime.tensorrt.bucket import MAX_GRAPHS
from lopa.runtime.tensorrt.tensorrt_manifest import TENSORRT_ENGINES, BuildFlags


class TestContract(DeviceContract):
    missing = (("tensorrt", "TensorRT cannot be imported"), ("cuda.bindings.runtime", "CUDA runtime"))
    failure = "cudaErrorIllegalAddress"
    test_missing_device_raises = None  # type: ignore[assignment]  # test_driver.py has the driver's replies

    @pytest.fixture
    def devices(self, bundle: Bundle, cuda: StandInGraphs, trt: ModuleType) -> Devices:
        def fail() -> None:
            cuda.codes["cudaMemcpyAsync"] = [None] * 40 + [cudaError_t.cudaErrorIllegalAddress]

        def used() -> None:
            assert {profile for profile, _ in trt.engines.forwards} == {0, 1, 2, 4}
            # Most forwards launch a graph. Only forwards of long prompts never do.
            plain = sum(way == "plain" and profile < 4 for profile, way in trt.engines.forwards)
            assert plain < cuda.launches / 2

        return Devices(bundle, "tensorrt:{}", fail, used)


def test_a_step_allocates_nothing_and_waits_once(bundle: Bundle, cuda: StandInGraphs) -> None:
    """After every shape was seen, a step has uploads, one graph launch, downloads of statistics and one wait."""
    session = open_session(bundle, "tensorrt:0")
    rng = np.random.default_rng(0)
    for turn in range(3):
        sequential(session).forward(random_batch(rng, (0,), 5, 40, 8))
        before = dict(cuda.calls) if turn == 2 else {}
        if turn == 1:
            sequential(session).commit(0, 3, 40)
            sequential(session).forward(random_batch(rng, (0,), 5, 40, 8, starts=40))
            sequential(session).forward(random_batch(rng, (0,), 5, 40, 8, starts=40))
    sequential(session).forward(random_batch(rng, (0,), 5, 40, 8, starts=40))
    calls = {name: count - before.get(name, 0) for name, count in cuda.calls.items() if count != before.get(name, 0)}
    assert calls == {"cudaMemcpyAsync": 6 + 3, "cudaGraphLaunch": 1, "cudaStreamSynchronize": 1}
    session.close()


def test_long_prompts_run_in_the_range_and_are_not_captured(bundle: Bundle, trt: ModuleType) -> None:
    plain, session = open_session(bundle, "cpu", threads=1), open_session(bundle, "tensorrt:0")
    rng = np.random.default_rng(1)
    for turn in range(3):
        batch = random_batch(rng, (turn,), 1, 70 + 8 * turn, 20)
        assert_same_statistics(sequential(session).forward(batch), sequential(plain).forward(batch))
        for each in (session, plain):
            sequential(each).commit(turn, 0, 40)
    assert trt.engines.forwards == [(4, "plain")] * 3
    for turn in range(3):
        batch = random_batch(rng, (turn,), 1, 80, 20, starts=40)
        assert_same_statistics(sequential(session).forward(batch), sequential(plain).forward(batch))
    both = random_batch(rng, (0, 1), 1, 90, 20, starts=40)
    assert_same_statistics(sequential(session).forward(both), sequential(plain).forward(both))
    more = random_batch(rng, (0, 1, 2), 1, 90, 20, starts=40)
    assert_same_statistics(sequential(session).forward(more), sequential(plain).forward(more))
    assert {way for _, way in trt.engines.forwards} == {"plain"}
    session.close()
    plain.close()


def test_each_part_of_a_forward_has_a_graph(bundle: Bundle, cuda: StandInGraphs, trt: ModuleType) -> None:
    """Results stay correct with more parts than cached graphs."""
    plain, session = open_session(bundle, "cpu", threads=1), open_session(bundle, "tensorrt:0")
    rng = np.random.default_rng(1)
    for parts in (2, MAX_GRAPHS + 1):
        before = cuda.launches
        for _ in range(4):
            batch = random_batch(rng, (0,), 3 * parts, 60, 4)
            assert_same_statistics(sequential(session).forward(batch), sequential(plain).forward(batch))
        assert (cuda.launches - before == 3 * parts) == (parts == 2)
    assert len(cuda.graphs) <= MAX_GRAPHS
    session.close()
    plain.close()


def test_uncapturable_engine_runs_without_graphs(
    bundle: Bundle, cuda: StandInGraphs, trt: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    trt.engines.cannot_be_captured = True
    session = open_session(bundle, "tensorrt:0")
    with caplog.at_level(logging.WARNING):
        assert_reproduced("lopa_bf4_bs32_full", session, bundle.manifest, limit=1)
    session.close()
    assert cuda.launches == 0
    assert "runs without a CUDA graph" in caplog.text
    assert "a layer waits for the stream" in caplog.text


@pytest.mark.parametrize(
    ("major", "flags"),
    [
        (10, BuildFlags(weight_streaming=True)),
        (11, BuildFlags(strip_weights=True)),
        (10, BuildFlags(strip_weights=True, products="int8")),  # its graph has other weights than the bundle
        (11, BuildFlags(version_compatible=True)),
    ],
)
def test_build_flags(
    major: int, flags: BuildFlags, tiny_bundle: Path, tmp_path: Path, cuda: StandInGraphs, monkeypatch: Any
) -> None:
    trt = stand_in_tensorrt(major, cuda=cuda)
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    bundle, expected = copy_bundle(tiny_bundle, tmp_path), open_session(Bundle.open(tiny_bundle), "cpu", threads=1)
    with_verified(built(bundle.path, trt, [bucket(1, 2, 48, 64)], flags))
    session = open_session(bundle, "tensorrt:0")
    batch = random_batch(np.random.default_rng(0), (0,), 2, 40, 8)
    assert_same_statistics(sequential(session).forward(batch), sequential(expected).forward(batch))
    session.close()
    expected.close()
    assert trt.engines.violations == []


def copy_bundle(path: Path, folder: Path) -> Bundle:
    return Bundle.open(Path(shutil.copytree(path, folder / "copy")))


@pytest.mark.parametrize("method", ["execute_async_v3", "set_input_shape", "set_tensor_address"])
def test_error_has_the_failing_call(method: str, bundle: Bundle, trt: ModuleType) -> None:
    session = open_session(bundle, "tensorrt:0")
    batch = random_batch(np.random.default_rng(0), (0,), 1, 90, 8)
    trt.engines.fails = {f"IExecutionContext.{method}"}
    with pytest.raises(EngineFailedError, match=rf"TensorRT: {method}.* failed\n  TensorRT: out of memory") as caught:
        sequential(session).forward(batch)
    assert caught.value.exit_code == 3
    trt.engines.fails = set()
    sequential(session).forward(batch)
    session.close()


@pytest.mark.parametrize(
    "method", ["ICudaEngine.create_execution_context", "IExecutionContext.set_optimization_profile_async"]
)
def test_failed_open_leaks_nothing(method: str, bundle: Bundle, trt: ModuleType) -> None:
    trt.engines.fails = {method}
    with pytest.raises(EngineFailedError, match="out of memory"):
        open_session(bundle, "tensorrt:0")
    trt.engines.fails = set()
    open_session(bundle, "tensorrt:0").close()


def test_portable_bundle_raises(tiny_portable: Path, trt: ModuleType) -> None:
    with pytest.raises(BadInputError, match="portable dialect"):
        open_session(Bundle.open(tiny_portable), "tensorrt:0")


def test_damaged_plan_raises(bundle: Bundle) -> None:
    (folder,) = TENSORRT_ENGINES.folders(bundle)
    plan = bytearray((folder / "engine.plan").read_bytes())
    plan[100] ^= 1
    (folder / "engine.plan").write_bytes(plan)
    with pytest.raises(BadInputError, match="is damaged") as caught:
        open_session(bundle, "tensorrt:0")
    assert "lopa-export tensorrt" in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "11.5.0.1"}, "TensorRT: the engine plan file is of 11.5.0.1"),
        ({"gpu": "Another GPU"}, "TensorRT: the engine plan file is of"),
        ({"tensors": "less"}, "it has the inputs and outputs"),
        ({"tensors": "HALF"}, "temperature is not an input of type FLOAT"),
        ({"profiles": "less"}, "it has 4 profiles, but engine.json has 5"),
        ({"profiles": "another"}, "input_ids has the shapes"),
    ],
)
def test_plan_that_contradicts_its_description_raises(
    change: dict[str, Any], message: str, bundle: Bundle, trt: ModuleType
) -> None:
    """The digest still matches."""
    (folder,) = TENSORRT_ENGINES.folders(bundle)
    plan = json.loads((folder / "engine.plan").read_bytes())
    if change == {"tensors": "less"}:
        del plan["tensors"]["entropy"]
    elif change == {"tensors": "HALF"}:
        plan["tensors"]["temperature"][1] = "HALF"
    elif change == {"profiles": "less"}:
        plan["profiles"].pop()
    elif change == {"profiles": "another"}:
        plan["profiles"][1]["input_ids"] = [[1, 3, 63]] * 3
    else:
        plan |= change
    write_plan(folder, json.dumps(plan).encode())
    with pytest.raises(BadInputError, match=message):
        open_session(bundle, "tensorrt:0")


def write_plan(folder: Path, plan: bytes) -> None:
    """Write the plan, and update size and digest in the description."""
    (folder / "engine.plan").write_bytes(plan)
    engine = json.loads((folder / "engine.json").read_bytes())
    files = [
        {**record, "size": len(plan), "sha256": hashlib.sha256(plan).hexdigest()}
        if record["path"] == "engine.plan"
        else record
        for record in engine["files"]
    ]
    (folder / "engine.json").write_text(json.dumps(engine | {"files": files}))


def test_missing_weights_raise(bundle: Bundle, trt: ModuleType) -> None:
    with_verified(built(bundle.path, trt, [bucket(1, 2, 48, 64)], BuildFlags(strip_weights=True)))
    (folder,) = TENSORRT_ENGINES.folders(bundle)
    plan = json.loads((folder / "engine.plan").read_bytes())
    plan["weights"] |= {f"scale.{number}": [1, 7] for number in range(7)}
    write_plan(folder, json.dumps(plan).encode())
    names = "scale.0, scale.1, scale.2, scale.3, scale.4, ..."
    with pytest.raises(BadInputError, match=rf"into it, 7 are missing: {re.escape(names)}\n  TensorRT: "):
        open_session(bundle, "tensorrt:0")


def test_damaged_refit_graph_raises(bundle: Bundle, trt: ModuleType) -> None:
    with_verified(built(bundle.path, trt, [bucket(1, 2, 48, 64)], BuildFlags(strip_weights=True)))
    (folder,) = TENSORRT_ENGINES.folders(bundle)
    model = folder / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"!")
    with pytest.raises(BadInputError, match=r"model\.onnx is damaged"):
        open_session(bundle, "tensorrt:0")
