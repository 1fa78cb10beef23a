"""A stand-in for `cuda.bindings.driver` that loads PTX of the commit kernel and launches it on the stand-in runtime.

It is not vendor software and does not execute PTX. A launch does what commit_kernel does, after checking name and
parameters against the PTX, types, block, grid and memory.
"""

# Names as in cuda-bindings:
# ruff: noqa: N802, N803

import ctypes
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from tests.runtime.accelerator.host_blocks import ViolationError
from tests.runtime.cuda.stand_in_cudart import StandInCudart


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_NOT_FOUND = 500


SUCCESS = CUresult.CUDA_SUCCESS


@dataclass(eq=False)
class Function:
    name: str
    parameters: list[int]
    threads: int
    word: int
    """Size in bytes of the numbers that the kernel copies."""


class StandInDriver:
    """Driver for the devices of a stand-in runtime. Heads have `head_size` numbers."""

    CUresult = CUresult

    def __init__(self, cudart: StandInCudart, head_size: int) -> None:
        self.cudart, self.head_size = cudart, head_size
        self.launches = 0
        self.loads = 0
        self.modules: list[bytes] = []

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        if not image.endswith(b"\0") or b".version" not in image:
            return CUresult.CUDA_ERROR_INVALID_PTX, None
        self.loads += 1
        self.modules.append(image)
        return SUCCESS, image

    def cuModuleGetFunction(self, hmod: bytes, name: bytes) -> tuple[Any, ...]:
        text = hmod.decode()
        entry = re.search(rf"\.entry {name.decode()}\(([^)]*)\)", text)
        if entry is None:
            return CUresult.CUDA_ERROR_NOT_FOUND, None
        threads = re.search(r"\.reqntid (\d+)", text)
        assert threads is not None
        word = int(re.findall(r"st\.global\S*\.b(\d+)", text)[0]) // 8
        sizes = [int(bits) for bits in re.findall(r"\.param \.u(\d+)", entry[1])]
        return SUCCESS, Function(name.decode(), sizes, int(threads[1]), word)

    def cuModuleUnload(self, hmod: bytes) -> tuple[Any, ...]:
        self.modules.remove(hmod)
        return (SUCCESS,)

    def cuLaunchKernel(
        self,
        f: Function,
        gridDimX: int,
        gridDimY: int,
        gridDimZ: int,
        blockDimX: int,
        blockDimY: int,
        blockDimZ: int,
        sharedMemBytes: int,  # noqa: ARG002
        hStream: int,
        kernelParams: Any,
        extra: Any,
    ) -> tuple[Any, ...]:
        values, types = kernelParams
        sizes = [8 * ctypes.sizeof(each) for each in types]
        assert sizes == f.parameters, "arguments of other sizes than the kernel's parameters"
        assert (blockDimX, blockDimY, blockDimZ, extra) == (f.threads, 1, 1, 0)
        assert min(gridDimX, gridDimY, gridDimZ) >= 1, "an empty grid"
        table, window, slot, width, prefix, offset, count, heads, words, *scratch = values
        assert scratch == [None, None]
        rows = 8 * gridDimZ
        assert rows - 8 < count <= rows, "blocks for other rows than there are"
        device = self.cudart.stream_device(hStream)
        row = words * f.word
        assert (heads, row % self.head_size) == (gridDimY, 0)

        def work() -> None:
            pairs = self.cudart.view(table, 16 * gridDimX).view(np.int64).reshape(gridDimX, 2)
            for source, target in pairs.tolist():
                for head in range(gridDimY):
                    start = source + ((window * gridDimY + head) * width) * row
                    to = target + ((slot * gridDimY + head) * prefix + offset) * row
                    for address in (start, to):
                        owner = self.cudart.device_of(address, count * row)
                        if owner != device:
                            raise ViolationError(f"device {device} uses memory of {owner}")
                    self.cudart.view(to, count * row)[:] = self.cudart.view(start, count * row)

        self.launches += 1
        self.cudart.enqueue(hStream, work, (table,))
        return (SUCCESS,)
