"""Rules that the stand-in CUDA runtime enforces."""

import threading
from collections.abc import Callable

import pytest
from tests.runtime.accelerator.host_blocks import ViolationError
from tests.runtime.cuda.stand_in_cudart import (
    ALIGNED,
    SUCCESS,
    StandInCudart,
    cudaMemcpyKind,
)

DEFAULT = cudaMemcpyKind.cudaMemcpyDefault


class Machine:
    """Two devices with a stream and 1000 bytes each, and 1000 pinned bytes. The thread uses device 0."""

    def __init__(self) -> None:
        self.cuda = StandInCudart(2)
        self.streams, self.places = [], []
        for device in (1, 0):
            self.cuda.cudaSetDevice(device)
            self.streams.insert(0, self.cuda.cudaStreamCreateWithFlags(1)[1])
            self.places.insert(0, self.cuda.cudaMalloc(1000)[1])
        self.host = self.cuda.cudaMallocHost(1000)[1]

    def copy(self, target: int, source: int, size: int = 100, stream: int = 0) -> str:
        return self.cuda.cudaMemcpyAsync(target, source, size, DEFAULT, self.streams[stream])[0].name

    def strided(self, width: int, target_pitch: int = 200, source_pitch: int = 100, height: int = 5) -> str:
        place = self.places[0]
        arguments = (place, target_pitch, self.host, source_pitch, width, height, DEFAULT, self.streams[0])
        return self.cuda.cudaMemcpy2DAsync(*arguments)[0].name

    def run_on_new_thread(self, work: Callable[[], object]) -> None:
        raised: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    def enqueue_copy(self, place: int) -> None:
        assert self.copy(place, self.host) == "cudaSuccess"


WRONG: dict[str, tuple[str, Callable[[Machine], object]]] = {
    "no device": ("set no device", lambda m: m.run_on_new_thread(lambda: m.cuda.cudaMalloc(5))),
    "stream of a device": ("thread of another device", lambda m: m.copy(m.places[0], m.host, stream=1)),
    "stream with work": (
        "queued work",
        lambda m: (m.enqueue_copy(m.places[0]), m.cuda.cudaStreamDestroy(m.streams[0])),
    ),
    "free before": ("a stream will use", lambda m: (m.enqueue_copy(m.places[0] + 9), m.cuda.cudaFree(m.places[0]))),
    "pageable": ("not all allocated", lambda m: m.copy(m.places[0], m.host + (1 << 30))),
    "other device": ("device 0 uses memory of 1", lambda m: m.copy(m.places[0], m.places[1])),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_raises(name: str) -> None:
    rule, work = WRONG[name]
    machine = Machine()
    with pytest.raises(ViolationError, match=rule):
        work(machine)
    assert len(machine.cuda.violations) == 1


def test_handled_errors_return_their_code() -> None:
    machine = Machine()
    cuda = machine.cuda
    assert cuda.cudaSetDevice(2)[0].name == "cudaErrorInvalidDevice"
    assert cuda.cudaMalloc(1 << 35)[0].name == "cudaErrorMemoryAllocation"
    assert machine.strided(101) == "cudaErrorInvalidPitchValue"
    assert cuda.violations == []


def test_correct_use() -> None:
    machine = Machine()
    cuda, place = machine.cuda, machine.places[0]
    assert place % ALIGNED == 0
    assert place % (2 * ALIGNED) != 0
    assert cuda.view(place, 1000).tolist() == [0xFF] * 1000
    cuda.view(machine.host, 1000)[:] = [i % 200 for i in range(1000)]
    assert machine.strided(100) == "cudaSuccess"
    assert cuda.view(place, 1000).tolist() == [0xFF] * 1000  # still queued
    assert cuda.cudaStreamSynchronize(machine.streams[0]) == (SUCCESS,)
    assert cuda.view(place, 1000).reshape(5, 200)[:, :100].tolist() == [[*range(100)], [*range(100, 200)]] * 2 + [
        [*range(100)]
    ]
    assert set(cuda.view(place, 1000).reshape(5, 200)[:, 100:].flat) == {0xFF}
    assert len(cuda.left) == 5
