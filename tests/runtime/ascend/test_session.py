"""The whole decoder on "ascend:N", over the stand-in acl and engines from the stand-in atc."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.buckets import bucket
from tests.conformance.recorded import assert_reproduced
from tests.runtime.ascend.engines import SOC, add_engine, bundle_with_engine
from tests.runtime.ascend.graphs import altered_graph, quantized
from tests.runtime.ascend.stand_in_acl import StandInAcl
from tests.runtime.ascend.stand_in_om import read_om, write_om
from tests.runtime.device_contract import DeviceContract, Devices
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.ascend.acl_calls import AclCalls, AclError
from lopa.runtime.ascend.acl_contract import acl_contract
from lopa.runtime.ascend.ascend_manifest import ASCEND_ENGINES
from lopa.runtime.ascend.process import THE_PROCESS
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.engine_file import ENGINE_NAME
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.errors import BadInputError, EngineFailedError
from lopa.runtime.sessions.session import open_session

TWO_BUCKETS = [bucket(1, 1, 80, 64), bucket(1, 5, 96, 192)]


@pytest.fixture
def bundle(ascend_bundle: Path) -> Bundle:
    return Bundle.open(ascend_bundle)


class TestContract(DeviceContract):
    several = 4
    missing = (("acl", "cannot load pyACL"),)
    absent = "there is no such device"
    failure = "507015"

    @pytest.fixture
    def devices(self, bundle: Bundle, machine: StandInAcl) -> Devices:
        def fail() -> None:
            machine.codes["mdl.execute_async"] = [None] * 9 + [507015]

        def used() -> None:
            assert len({line for line in machine.trace if "set_input_dynamic_dims" in line}) > 1

        return Devices(bundle, "ascend:{}", fail, used)


def test_static_oms_per_bucket(tiny_portable: Path, machine: StandInAcl, tmp_path: Path) -> None:
    path = Path(shutil.copytree(tiny_portable, tmp_path / "bundle"))
    graph = altered_graph(path / "portable.onnx", path / "int8.onnx", quantized)
    found = add_engine(path, TWO_BUCKETS, int8_graph=graph)
    graph.unlink()
    assert not found.engine.dynamic
    assert len({each.model for each in found.engine.buckets}) == 2
    bundle = Bundle.open(path)
    session = open_session(bundle, "ascend:0")
    assert_reproduced("lopa_bf4_bs32_full", session, bundle.manifest, limit=2)
    session.close()
    assert sum("load_from_file" in line for line in machine.trace) == 2
    assert not any("dynamic" in line for line in machine.trace)


def test_a_step_allocates_nothing_and_waits_once(bundle: Bundle, machine: StandInAcl) -> None:
    session, rng = open_session(bundle, "ascend:1"), np.random.default_rng(4)
    calls: list[Counter[str]] = []
    for start in (0, 40, 40):
        sequential(session).forward(random_batch(rng, (0,), 5, 40, 8, starts=start))
        calls.append(Counter(line.partition("(")[0] for line in machine.trace))
        machine.trace.clear()
        if start == 0:
            sequential(session).commit(0, 3, 40)
            sequential(session).read_rows(0, 0, 3)
    session.close()
    step = {name: count for name, count in calls[-1].items() if name not in ("update_data_buffer",)}
    assert step == {
        "rt.memcpy_async": 7 + 4,  # inputs without the prefix, statistics with logits
        "mdl.set_input_dynamic_dims": 1,
        "mdl.execute_async": 1,
        "rt.synchronize_stream": 1,
    }


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("mdl.execute_async", 507011, "acl.mdl.execute_async returned 507011 (ACL_ERROR_RT_MODEL_EXECUTE)"),
        ("rt.synchronize_stream", 507015, "acl.rt.synchronize_stream returned 507015 (ACL_ERROR_RT_AICORE_EXCEPTION)"),
        ("mdl.set_input_dynamic_dims", 145013, "acl.mdl.set_input_dynamic_dims returned 145013"),
        ("rt.memcpy_async", 123456, "acl.rt.memcpy_async returned 123456"),
    ],
)
def test_error_has_call_and_code(call: str, code: int, message: str, bundle: Bundle, machine: StandInAcl) -> None:
    session = open_session(bundle, "ascend:0")
    batch = random_batch(np.random.default_rng(0), (0,), 2, 40, 8)
    expected = sequential(session).forward(batch)
    machine.codes[call] = [code]
    with pytest.raises(AclError) as caught:
        sequential(session).forward(batch)
    assert message in str(caught.value)
    assert isinstance(caught.value, EngineFailedError)
    assert caught.value.exit_code == 3
    if code == 123456:
        assert "aclError" in caught.value.remedy
    if call == "rt.synchronize_stream":
        session.close()
        return
    assert_same_statistics(sequential(session).forward(batch), expected, tolerance=1e-7)
    session.close()


@pytest.mark.parametrize(
    ("call", "code", "before"),
    [
        ("rt.create_context", 507000, 0),
        ("rt.create_stream", 507000, 0),
        ("mdl.load_from_file", 545001, 0),
        ("mdl.get_desc", 100011, 0),
        ("rt.malloc", 207001, 0),
        ("mdl.get_input_dynamic_dims", 145000, 0),
        ("rt.malloc", 207001, 1),
    ],
)
def test_failed_open_leaks_nothing(call: str, code: int, before: int, bundle: Bundle, machine: StandInAcl) -> None:
    """The first `before` calls succeed."""
    machine.codes[call] = [*[None] * before, code]
    with pytest.raises(AclError, match=str(code)):
        open_session(bundle, "ascend:0")
    open_session(bundle, "ascend:0").close()


@pytest.mark.parametrize("call", ["destroy_data_buffer", "mdl.unload", "rt.free", "rt.destroy_stream"])
def test_failing_close_frees_the_rest(call: str, bundle: Bundle, machine: StandInAcl) -> None:
    session = open_session(bundle, "ascend:0")
    sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 2, 40, 8))
    machine.codes_of_done[call] = 500000
    with pytest.raises(AclError, match="500000"):
        session.close()
    machine.codes_of_done.clear()
    assert [call.partition("(")[0] for call in machine.trace[-2:]] == ["rt.destroy_context", "rt.reset_device"]


def test_each_session_resets_its_device(bundle: Bundle, machine: StandInAcl) -> None:
    sessions = [open_session(bundle, "ascend:0") for _ in range(2)]
    for count, session in enumerate(sessions, 1):
        session.close()
        assert machine.trace.count("rt.reset_device(0)") == count
    assert machine.trace.count("init()") == 1


def test_pyacl_of_another_library_is_not_finalized(bundle: Bundle, machine: StandInAcl) -> None:
    machine.init()
    open_session(bundle, "ascend:0").close()
    THE_PROCESS.finalize()
    assert "finalize()" not in machine.trace
    machine.finalize()


def test_open_session_prevents_finalize(bundle: Bundle, machine: StandInAcl) -> None:
    session = open_session(bundle, "ascend:0")
    THE_PROCESS.finalize()
    assert "finalize()" not in machine.trace
    sequential(session).forward(random_batch(np.random.default_rng(0), (0,), 1, 40, 8))
    session.close()


def test_bundle_without_engine_raises(tiny_portable: Path, machine: StandInAcl) -> None:
    with pytest.raises(BadInputError, match="no engine for Ascend") as caught:
        open_session(Bundle.open(tiny_portable), "ascend:0")
    assert f"lopa-export ascend {tiny_portable}" in caught.value.remedy


def test_engine_is_chosen_by_chip(tiny_portable: Path, machine: StandInAcl, tmp_path: Path) -> None:
    path = bundle_with_engine(tiny_portable, tmp_path / "bundle", TWO_BUCKETS, "Ascend910B3")
    add_engine(path, TWO_BUCKETS, SOC)
    bundle = Bundle.open(path)
    open_session(bundle, "ascend:0").close()
    machine.soc = "Ascend910B4"
    with pytest.raises(BadInputError, match="has engines for Ascend910B1, Ascend910B3, but this is Ascend910B4"):
        open_session(bundle, "ascend:0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights_sha256": "0" * 64}, "built from other weights"),
        ({"outputs": []}, "has the outputs"),
        ({"inputs": "one less"}, "7 inputs, the last is temperature"),
        ({"buckets": "another"}, "has no shape bucket with the dims"),
    ],
)
def test_mismatched_engine_raises(
    change: dict[str, object], message: str, ascend_bundle: Path, machine: StandInAcl, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(ascend_bundle, tmp_path / "bundle"))
    (folder,) = (path / "engines").iterdir()
    engine = ASCEND_ENGINES.read(folder).engine
    if change == {"inputs": "one less"}:
        dynamic_count = engine.inputs[-1].dims.count(-1)
        buckets = [
            msgspec.structs.replace(each, dims=each.dims[: len(each.dims) - dynamic_count]) for each in engine.buckets
        ]
        change = {"inputs": engine.inputs[:-1], "buckets": buckets}
    elif change == {"buckets": "another"}:
        last = engine.buckets[-1]
        change = {"buckets": [*engine.buckets[:-1], msgspec.structs.replace(last, dims=[dim + 1 for dim in last.dims])]}
    (folder / ENGINE_NAME).write_bytes(json_from_record(msgspec.structs.replace(engine, **change)))
    with pytest.raises(BadInputError, match=message):
        open_session(Bundle.open(path), "ascend:0")


def test_om_with_other_inputs_raises(ascend_bundle: Path, machine: StandInAcl, tmp_path: Path) -> None:
    path = Path(shutil.copytree(ascend_bundle, tmp_path / "bundle"))
    found = ASCEND_ENGINES.read(next((path / "engines").iterdir()))
    model = found.folder / found.engine.buckets[0].model
    om = read_om(model)
    write_om(model, msgspec.structs.replace(om, inputs=om.inputs[:-1], buckets=[each[:-2] for each in om.buckets]))
    files = [
        msgspec.structs.replace(each, size=model.stat().st_size) if each.path == model.name else each
        for each in found.engine.files
    ]
    (found.folder / ENGINE_NAME).write_bytes(json_from_record(msgspec.structs.replace(found.engine, files=files)))
    with pytest.raises(BadInputError, match="has 8 inputs and 14 outputs") as caught:
        open_session(Bundle.open(path), "ascend:0")
    assert caught.value.expected.startswith("9 and 14")


def test_command_line_with_the_stand_in(ascend_bundle: Path) -> None:
    """The command line decodes, pyACL is finalized at the end of the process, and nothing leaks."""
    code = """
import sys
import acl
from lopa.cli.main import main
try:
    main(["generate", sys.argv[1], "Question: 2 + 3?", "--device", "ascend:0", "--device", "ascend:1",
          "--max-new-tokens", "16"])
finally:
    import atexit
    atexit.register(lambda: print(acl.MACHINE.violations, acl.MACHINE.trace[-1], file=sys.stderr))
    from lopa.runtime.ascend.process import THE_PROCESS
    atexit.register(THE_PROCESS.finalize)
"""
    root = Path(__file__).resolve().parents[3]
    path = ":".join(map(str, (root / "tests" / "runtime" / "ascend" / "as_acl", root / "src", root)))
    done = subprocess.run(
        [sys.executable, "-c", code, str(ascend_bundle)],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr.strip().endswith("[] finalize()")


def test_stand_in_matches_the_contract(machine: StandInAcl) -> None:
    """The stand-in matches the adapter's table, whose evidence is doc or source, never recorded."""
    table = acl_contract()
    AclCalls(machine)  # checks that every name exists
    for call in table.calls:
        group, _, name = call.name.rpartition(".")
        returns = getattr(StandInAcl, f"{group or 'top'}__{name}").__annotations__["return"]
        expected = "ret" if call.returns == "ret" else "value, ret" if "tuple" in str(returns) else "value"
        assert call.returns == expected, call.name
    entries = [*table.calls, *table.rules, *table.codes]
    assert {entry.evidence for entry in entries} == {"doc", "source"}
    assert len({code.code for code in table.codes}) == len(table.codes)
