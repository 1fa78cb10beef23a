"""The whole decoder on "cuda:N", on stand-ins for the CUDA runtime and ONNX Runtime's CUDA provider."""

import inspect
import shutil
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
from tests.buckets import bucket, params_of
from tests.conformance.recorded import assert_reproduced
from tests.runtime.check_cases import assert_cases_agree, assert_growth_agrees, fits
from tests.runtime.cuda.stand_in_cudart import cudaError_t
from tests.runtime.cuda.stand_in_ort import StandInBinding, StandInOrt, StandInSession
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential
from tests.runtime.shortened import assert_shortened_equals_fresh

from lopa.cli.start.doctor import command as doctor
from lopa.runtime import Decoder, Engine
from lopa.runtime.accelerator.device_memory import Buffer
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME, ShapeBucket
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.cuda.cuda_calls import MODULE, CudaCalls, CudaError
from lopa.runtime.cuda.cuda_forward import CudaForward
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.devices import session_from_devices
from lopa.runtime.errors import BadInputError, EngineFailedError, MissingBackendError
from lopa.runtime.install_hint import pip_install
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.sessions.session import Session, open_session

BUCKETS = [bucket(1, 1, 80, 64), bucket(1, 3, 64, 128), bucket(1, 5, 48, 64), bucket(2, 5, 96, 192)]


def with_buckets(source: Path, target: Path, buckets: Sequence[ShapeBucket] = BUCKETS) -> Bundle:
    """Return a copy of the bundle with a plan."""
    shutil.copytree(source, target)
    bundle = Bundle.open(target)
    (target / BUCKETS_NAME).write_bytes(json_from_record(params_of(bundle, buckets=list(buckets))))
    return bundle


@pytest.fixture(params=["buckets", "no buckets"])
def bundle(request: pytest.FixtureRequest, tiny_bundle: Path, tmp_path: Path) -> Bundle:
    return with_buckets(tiny_bundle, tmp_path / "b") if request.param == "buckets" else Bundle.open(tiny_bundle)


@pytest.mark.parametrize("name", ["lopa_bf4_bs32_full", "lopa_bf2_bs16_block"])
def test_recorded_traces_on_one_device(name: str, bundle: Bundle, machine: StandInOrt) -> None:
    session = session_from_devices(bundle, ["cuda:0"])
    assert_reproduced(name, session, bundle.manifest, limit=10)
    session.close()
    assert machine.waits == 0
    if (bundle.path / BUCKETS_NAME).exists():
        assert machine.replays > len(machine.captures) > 2
    else:
        assert machine.captures == []
        assert machine.plain_runs > 30


@pytest.mark.parametrize("name", ["lopa_bf4_bs32_full", "lopa_bf4_bs16_block"])
def test_recorded_traces_on_two_devices(name: str, bundle: Bundle, machine: StandInOrt) -> None:
    session = session_from_devices(bundle, ["cuda:0", "cuda:1"])
    assert isinstance(session, BranchParallelSession)
    assert_reproduced(name, session, bundle.manifest, limit=4)
    session.close()
    assert session.lost == ()


@pytest.fixture(params=["standard", "portable"])
def path_of_form(request: pytest.FixtureRequest) -> Path:
    """Return a bundle with logits in each form."""
    name = {"standard": "tiny_bundle_logits", "portable": "tiny_portable"}[request.param]
    return request.getfixturevalue(name)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "buckets",
    [None, [bucket(1, 1, 20, 64, 1.0), bucket(2, 3, 33, 128, 2.0)], [bucket(1, 2, 64, 64)]],
    ids=["no buckets", "small buckets", "split"],
)
def test_all_shapes_give_the_same_statistics_and_rows(
    buckets: list[ShapeBucket] | None, path_of_form: Path, machine: StandInOrt, tmp_path: Path
) -> None:
    """Cover all requests, branches, masks, padding rows and prefixes of the engine check; small ones are split."""
    bundle = Bundle.open(path_of_form) if buckets is None else with_buckets(path_of_form, tmp_path / "b", buckets)
    session = open_session(bundle, "cuda:0")
    split = buckets is not None and len(buckets) == 1
    selected = fits(prefix=64, window=64) if split else fits(prefix=256, window=160)
    assert_cases_agree(bundle, session, rows=True, taken=selected)
    session.close()
    assert (machine.plain_runs > 0) == (buckets is None or len(buckets) == 2)
    assert (machine.replays > 0) == (buckets is not None)


def test_prefixes_grow_and_requests_are_released(bundle: Bundle, machine: StandInOrt) -> None:
    """Requests run together and alone, over several tiles and beyond the largest shape bucket. A released number is
    reused.
    """
    session = open_session(bundle, "cuda:2")
    lengths = assert_growth_agrees(bundle, session, rounds=2, most_branches=5, width=40, ends=(6, 13))
    assert lengths[1] > 256
    session.close()


def test_shortened_request_equals_a_fresh_one(bundle: Bundle, machine: StandInOrt) -> None:
    session, plain = open_session(bundle, "cuda:2"), open_session(bundle, "cpu", threads=1)
    assert_shortened_equals_fresh(session, plain, exact=False)
    assert (machine.replays > 0) == (bundle.path / BUCKETS_NAME).exists()
    session.close()
    plain.close()


def test_graphs_and_memory_do_not_grow(tiny_bundle: Path, tmp_path: Path, machine: StandInOrt) -> None:
    """Further requests use the same graphs at the same addresses."""
    session = open_session(with_buckets(tiny_bundle, tmp_path / "b"), "cuda:0")
    rng = np.random.default_rng(5)

    def decode(number: int) -> tuple[int, int]:
        for turn in range(3):
            sequential(session).forward(random_batch(rng, (number, number + 1), 2, 40, 8, starts=40 * turn))
            sequential(session).commit(number, 0, 40)
            sequential(session).commit(number + 1, 1, 20)
            sequential(session).forward(random_batch(rng, (number,), 5, 40, 8, starts=40 * turn + 40))
        session.free(number)
        session.free(number + 1)
        return len(machine.captures), machine.cudart.allocated(0)

    first = decode(0)
    assert first[0] >= 2
    binds = machine.binds
    assert [decode(number) for number in range(2, 8)] == [first] * 6
    assert machine.binds == binds
    session.close()
    session.close()


def test_prefix_outside_all_buckets_is_freed(tiny_bundle: Path, machine: StandInOrt) -> None:
    session = open_session(Bundle.open(tiny_bundle), "cuda:0")
    rng = np.random.default_rng(5)
    left = []
    for requests in ((1,), (2, 3), (4,)):
        sequential(session).forward(random_batch(rng, requests, 2, 40, 8))
        before = machine.cudart.allocated(0)
        for request in requests:
            session.free(request)
        left.append(machine.cudart.allocated(0))
        assert left[-1] < before
    assert left[1] == left[2]
    session.close()


def test_only_statistics_are_downloaded(tiny_bundle: Path, machine: StandInOrt) -> None:
    session = open_session(Bundle.open(tiny_bundle), "cuda:0")
    rng = np.random.default_rng(0)
    sequential(session).forward(random_batch(rng, (0,), 2, 40, 8))
    sequential(session).commit(0, 1, 30)
    calls = dict(machine.cudart.calls)
    sequential(session).forward(random_batch(rng, (0,), 2, 40, 8, starts=30))
    assert machine.cudart.calls["cudaStreamSynchronize"] == calls["cudaStreamSynchronize"] + 1
    assert machine.cudart.calls["cudaMalloc"] == calls["cudaMalloc"]
    assert machine.cudart.calls["cudaMemcpyAsync"] == calls["cudaMemcpyAsync"] + 6 + 3  # inputs, statistics
    assert machine.cudart.calls["cudaMemcpy2DAsync"] == calls["cudaMemcpy2DAsync"]
    session.close()


def test_several_requests_at_once(bundle: Bundle, machine: StandInOrt) -> None:
    prompts = ["Question: 2 + 3?", "Natalia sold clips to 48 of her friends.", "A", "What is 7 times 6?"]

    def tokens(device: str) -> list[tuple[int, ...]]:
        with Decoder.open(bundle.path, [device], threads=1) as decoder:
            config = decoder.config(max_new_tokens=48, branches=3)
            with Engine(decoder, max_num_seqs=3) as engine:
                handles = [engine.submit(prompt, config) for prompt in prompts]
                return [handle.result(60).token_ids for handle in handles]

    assert tokens("cuda:0") == tokens("cpu")


def test_failing_device_is_dropped(bundle: Bundle, machine: StandInOrt) -> None:
    """The tokens do not change."""
    session = session_from_devices(bundle, ["cuda:0", "cuda:1", "cuda:3"])
    machine.cudart.codes["cudaMemcpy2DAsync"] = [None] * 40 + [cudaError_t.cudaErrorIllegalAddress]
    assert_reproduced("lopa_bf4_bs32_full", session, bundle.manifest, limit=3)
    session.close()
    assert len(session.lost) == 1


def test_failing_forward_raises(bundle: Bundle, machine: StandInOrt) -> None:
    session = open_session(bundle, "cuda:0")
    machine.failures.append("CUDA failure 2: out of memory")
    with pytest.raises(EngineFailedError, match="ONNX Runtime on cuda:0: CUDA failure 2") as caught:
        sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 1, 40, 8))
    assert caught.value.exit_code == 3
    session.close()


def test_rows_in_float16(tiny_half: Path, machine: StandInOrt) -> None:
    bundle = Bundle.open(tiny_half).with_twins()  # CPU graphs round to float16 at other places
    plain, session = open_session(bundle, "cpu", threads=1), open_session(bundle, "cuda:0")
    rng = np.random.default_rng(0)
    for start in (0, 30):
        batch = random_batch(rng, [1], 3, 30, 8, starts=start)
        assert_same_statistics(sequential(session).forward(batch), sequential(plain).forward(batch), tolerance=1e-4)
        for each in (plain, session):
            sequential(each).commit(1, 2, 30)
    plain.close()
    session.close()


def test_bfloat16_rows_are_bound_as_bfloat16(
    tiny_bundle: Path, machine: StandInOrt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are bound as ONNX's bfloat16 with two bytes each. Nothing is computed, because CPUs have no such
    operators.
    """
    opened = Bundle.open(tiny_bundle)
    bundle = replace(opened, manifest=msgspec.structs.replace(opened.manifest, dtype="bfloat16"))
    plain = ort.InferenceSession(str(opened.graph), providers=["CPUExecutionProvider"])
    bound: list[tuple[str, object, int]] = []

    class RecordingBinding:
        def bind_input(self, *arguments: Any) -> None:
            name, _, _, kind, shape, _ = arguments
            bound.append((name, kind, int(np.prod(shape))))

        bind_output = bind_input

    def describe_in_bfloat16(values: list[Any]) -> list[Any]:
        """Describe inputs or outputs like the graph of a bfloat16 bundle."""
        types = {each.name: "tensor(bfloat16)" if "key_values" in each.name else each.type for each in values}
        return [SimpleNamespace(name=each.name, type=types[each.name], shape=each.shape) for each in values]

    class FakeSession:
        io_binding = RecordingBinding

        def get_providers(self) -> list[str]:
            return ["CUDAExecutionProvider"]

        def get_inputs(self) -> list[Any]:
            return describe_in_bfloat16(plain.get_inputs())

        def get_outputs(self) -> list[Any]:
            return describe_in_bfloat16(plain.get_outputs())

        def run_with_iobinding(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(ort, "InferenceSession", lambda *_, **__: FakeSession())
    memory = CudaMemory(CudaCalls(machine.cudart), 0)
    engine = CudaForward(bundle, "cuda:0", memory, [])
    shape = bucket(1, 2, 30, 64)
    sizes = engine.sizes_of(shape)
    names = [each.name for each in (*plain.get_inputs(), *plain.get_outputs())]
    engine.enqueue(shape, {name: Buffer(512, sizes.get(name, 0)) for name in names})
    rows = [(name, kind, count) for name, kind, count in bound if "key_values" in name]
    assert len(rows) == 4 * bundle.manifest.dimensions.layers
    assert {kind for _, kind, _ in rows} == {16}
    assert all(sizes[name] == 2 * count for name, _, count in rows if name.startswith("window"))
    assert {name: kind for name, kind, _ in bound if "key_values" not in name} == {
        **dict.fromkeys(("input_ids", "position_ids", "logits_index", "topk_ids"), np.int64),
        **dict.fromkeys(("window_mask", "prefix_mask"), np.bool_),
        **dict.fromkeys(("temperature", "topk_logprobs", "entropy"), np.float32),
    }
    memory.close()


@pytest.mark.parametrize(
    ("device", "name", "number", "tf32"),
    [
        ("cuda", "cuda:0", 0, False),
        ("cuda:2", "cuda:2", 2, False),
        ("cuda:1:tf32", "cuda:1:tf32", 1, True),
        ("cuda:tf32", "cuda:0:tf32", 0, True),
    ],
)
def test_tf32_is_off_unless_the_device_names_it(
    device: str, name: str, number: int, tf32: bool, bundle: Bundle, machine: StandInOrt
) -> None:
    """ONNX Runtime's own default is on."""
    session = open_session(bundle, device)
    (opened,) = machine.sessions
    assert (session.device, opened.device, opened.tf32) == (name, number, tf32)
    forward_on(session)
    session.close()


def test_missing_cuda_bindings_raise(tiny_bundle: Path, machine: StandInOrt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    with pytest.raises(MissingBackendError, match="cuda-bindings"):
        open_session(Bundle.open(tiny_bundle), "cuda:0")


def test_missing_device_raises(tiny_bundle: Path, machine: StandInOrt) -> None:
    with pytest.raises(CudaError, match="cudaErrorInvalidDevice"):
        open_session(Bundle.open(tiny_bundle), "cuda:7")


def test_provider_that_does_not_start_raises(tiny_bundle: Path, machine: StandInOrt) -> None:
    machine.starts = False
    with pytest.raises(MissingBackendError, match="cuda:0: the CUDA provider did not start"):
        open_session(Bundle.open(tiny_bundle), "cuda:0")


def test_graph_that_cannot_be_captured_raises(tiny_bundle: Path, tmp_path: Path, machine: StandInOrt) -> None:
    """The error tells how to run without graphs, which then works."""
    machine.unsupported = True
    bundle = with_buckets(tiny_bundle, tmp_path / "b")
    with pytest.raises(BadInputError, match="not been partitioned") as caught:
        open_session(bundle, "cuda:0")
    assert f"remove {BUCKETS_NAME}" in caught.value.remedy
    (bundle.path / BUCKETS_NAME).unlink()
    session = open_session(bundle, "cuda:0")
    sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 1, 40, 8))
    session.close()


def test_plan_for_other_weights_raises(tiny_bundle: Path, tmp_path: Path, machine: StandInOrt) -> None:
    bundle = with_buckets(tiny_bundle, tmp_path / "b")
    plan = params_of(bundle, buckets=BUCKETS, weights_sha256="0" * 64)
    (bundle.path / BUCKETS_NAME).write_bytes(json_from_record(plan))
    with pytest.raises(BadInputError, match="was made for weights 0000"):
        open_session(bundle, "cuda:0")


def forward_on(session: Session) -> None:
    sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 1, 40, 8))


def test_session_runs_on_its_own_thread(bundle: Bundle, machine: StandInOrt) -> None:
    """The calling thread does not matter, although graphs belong to the thread that captured them."""
    session = open_session(bundle, "cuda:0")
    threads = [threading.Thread(target=forward_on, args=(session,)) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    assert machine.replays + machine.plain_runs >= 2
    session.close()


def test_captures_on_two_devices_at_once(tiny_bundle: Path, tmp_path: Path, machine: StandInOrt) -> None:
    """While one device captures, the others make no calls. The stand-in would raise."""
    bundle = with_buckets(tiny_bundle, tmp_path / "b", [bucket(1, 1, 20 * n, 64) for n in (1, 2, 3, 4)])
    sessions = [open_session(bundle, f"cuda:{number}") for number in range(3)]
    rng = np.random.default_rng(3)
    batches = [random_batch(rng, (0,), 1, width, 8) for width in (20, 40, 60, 80)]

    def run(session: Session) -> None:
        for batch in batches * 2:
            sequential(session).forward(batch)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, sessions))
    assert len(machine.captures) == 12
    for session in sessions:
        session.close()


def test_doctor(machine: StandInOrt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> str:
        doctor(["--all"], standalone_mode=False)
        return capsys.readouterr().out.partition("cuda:N: ")[2].splitlines()[0]

    assert state() == "ready (4 devices)"
    machine.cudart.codes["cudaGetDeviceCount"] = [cudaError_t.cudaErrorInsufficientDriver]
    assert state().startswith("cudaGetDeviceCount returned cudaErrorInsufficientDriver")
    monkeypatch.setitem(sys.modules, MODULE, None)
    assert state() == f"no cuda-bindings: {pip_install('gpu')}"
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert state().startswith("no CUDA provider in ONNX Runtime: ")


def test_stand_in_matches_the_real_onnx_runtime() -> None:
    """Compare names and order of arguments."""
    for ours, theirs in (
        (StandInBinding.bind_input, ort.IOBinding.bind_input),
        (StandInBinding.bind_output, ort.IOBinding.bind_output),
        (StandInSession.run_with_iobinding, ort.InferenceSession.run_with_iobinding),
        (StandInSession.get_providers, ort.InferenceSession.get_providers),
        (StandInSession.io_binding, ort.InferenceSession.io_binding),
    ):
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
