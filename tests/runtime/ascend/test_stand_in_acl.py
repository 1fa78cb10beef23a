"""Rules that the stand-in acl enforces."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.accelerator.host_blocks import ViolationError
from tests.runtime.ascend import stand_in_acl
from tests.runtime.ascend.stand_in_acl import StandInAcl

from lopa.runtime.ascend.acl_calls import AclCalls
from lopa.runtime.ascend.acl_contract import acl_contract
from lopa.runtime.ascend.ascend_manifest import ASCEND_ENGINES
from lopa.runtime.bundle import Bundle

H2D, D2H, D2D = 1, 2, 3


class Machine:
    """A device with a loaded model and everything that a forward needs."""

    def __init__(self, bundle: Path, acl: StandInAcl, device: int = 0) -> None:
        self.acl, self.device = acl, device
        acl.init()
        acl.rt.set_device(device)
        self.context = value(acl.rt.create_context(device))
        self.stream = value(acl.rt.create_stream())
        (folder,) = ASCEND_ENGINES.folders(Bundle.open(bundle))
        found = ASCEND_ENGINES.read(folder)
        self.path = str(found.folder / found.engine.buckets[0].model)
        self.model = value(acl.mdl.load_from_file(self.path))
        self.desc = acl.mdl.create_desc()
        assert acl.mdl.get_desc(self.desc, self.model) == 0
        self.buckets = [each["dims"] for each in value(acl.mdl.get_input_dynamic_dims(self.desc, -1, 4))]
        self.names = [each.name for each in found.engine.inputs]
        self.memory: list[int] = []
        self.buffers: list[int] = []
        self.inputs, self.outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
        counts = acl.mdl.get_num_inputs(self.desc), acl.mdl.get_num_outputs(self.desc)
        sizes = [acl.mdl.get_input_size_by_index(self.desc, index) for index in range(counts[0])]
        self.sizes = [*sizes, *(acl.mdl.get_output_size_by_index(self.desc, index) for index in range(counts[1]))]
        for number, size in enumerate(self.sizes):
            self.memory.append(value(acl.rt.malloc(size, 0)))
            self.buffers.append(acl.create_data_buffer(self.memory[-1], size))
            value(acl.mdl.add_dataset_buffer(self.inputs if number < counts[0] else self.outputs, self.buffers[-1]))
            if number < counts[0]:
                assert acl.rt.memset_async(self.memory[-1], size, 0, size, self.stream) == 0
        self.place = value(acl.mdl.get_input_index_by_name(self.desc, stand_in_acl.DIMS_INPUT))

    def set_dims(self, dims: list[int]) -> int:
        profile = {"name": "", "dimCount": len(dims), "dims": dims}
        return self.acl.mdl.set_input_dynamic_dims(self.model, self.inputs, self.place, profile)

    def execute(self) -> int:
        return self.acl.mdl.execute_async(self.model, self.inputs, self.outputs, self.stream)

    def run(self) -> None:
        assert (self.set_dims(self.buckets[0]), self.execute()) == (0, 0)

    def synchronize(self) -> int:
        return self.acl.rt.synchronize_stream(self.stream)

    def close(self) -> None:
        acl = self.acl
        assert self.synchronize() == 0
        for buffer in self.buffers:
            assert acl.destroy_data_buffer(buffer) == 0
        for dataset in (self.inputs, self.outputs):
            assert acl.mdl.destroy_dataset(dataset) == 0
        for address in self.memory:
            assert acl.rt.free(address) == 0
        assert acl.mdl.destroy_desc(self.desc) == 0
        assert acl.mdl.unload(self.model) == 0
        assert acl.rt.destroy_stream(self.stream) == 0
        assert acl.rt.destroy_context(self.context) == 0
        assert acl.rt.reset_device(self.device) == 0


def value(answer: tuple[Any, int]) -> Any:
    found, code = answer
    assert code == 0
    return found


@pytest.fixture
def acl() -> StandInAcl:
    return StandInAcl(devices=2)


@pytest.fixture
def one(ascend_bundle: Path, acl: StandInAcl) -> Machine:
    return Machine(ascend_bundle, acl)


def test_correct_use_leaks_nothing(one: Machine) -> None:
    one.run()
    one.close()
    assert one.acl.finalize() == 0
    assert one.acl.violations == []


def test_results_require_synchronization(one: Machine) -> None:
    host = value(one.acl.rt.malloc_host(4096))
    data = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 4096).from_address(host))
    one.run()
    first_output = one.memory[one.place + 1]
    assert one.acl.rt.memcpy_async(host, 4096, first_output, 4096, D2H, one.stream) == 0
    assert (data == 0xFF).all()
    one.synchronize()
    assert (data[:8].view(np.int64) < 1024).all()
    assert one.acl.rt.free_host(host) == 0
    one.close()
    one.acl.finalize()


VIOLATIONS: dict[str, tuple[str, Callable[[Machine], object]]] = {
    "no context": ("without a context", lambda one: run_on_another_thread(lambda: one.acl.rt.create_stream())),
    "unsupported dims": ("unsupported dims", lambda one: one.set_dims([*one.buckets[0][:-1], 33])),
    "no dims": ("without dims", lambda one: one.execute()),
    "stream in use": ("queued work", lambda one: one.acl.rt.destroy_stream(one.stream)),
    "freed in use": ("freed that a stream will use", lambda one: one.acl.rt.free(one.memory[0])),
    "wrong direction": (
        "a copy of kind 1 from device",
        lambda one: one.acl.rt.memcpy_async(one.memory[0], 64, one.memory[1], 64, H2D, one.stream),
    ),
    "unloaded while it runs": (
        "unloaded while it runs",
        lambda one: (one.run(), one.acl.mdl.unload(one.model)),
    ),
    "buffer changed too early": (
        "a buffer changed before",
        lambda one: (
            one.set_dims(one.buckets[0]),
            one.execute(),
            one.acl.update_data_buffer(one.buffers[0], one.memory[0], one.sizes[0]),
        ),
    ),
    "dims changed too early": (
        "the dims of a forward changed",
        lambda one: (one.run(), one.set_dims(one.buckets[0])),
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_wrong_use_raises(name: str, one: Machine) -> None:
    message, use = VIOLATIONS[name]
    with pytest.raises(ViolationError, match=message):
        use(one)
    assert len(one.acl.violations) == 1


def test_stand_in_matches_the_contract(one: Machine) -> None:
    """The stand-in matches the adapter's table, whose evidence is doc or source, never recorded."""
    table = acl_contract()
    AclCalls(one.acl)  # checks that every name exists
    for call in table.calls:
        group, _, name = call.name.rpartition(".")
        returns = getattr(StandInAcl, f"{group or 'top'}__{name}").__annotations__["return"]
        expected = "ret" if call.returns == "ret" else "value, ret" if "tuple" in str(returns) else "value"
        assert call.returns == expected, call.name
    entries = [*table.calls, *table.rules, *table.codes]
    assert {entry.evidence for entry in entries} == {"doc", "source"}
    assert len({code.code for code in table.codes}) == len(table.codes)


def run_on_another_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]
