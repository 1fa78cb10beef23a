"""The part of ONNX Runtime's C interface that one operator uses, with any number of threads.

It runs the tasks of an operator in the calling thread and records how many there were. The library keeps what it
registered for a number of threads, so a process that uses this must not open sessions.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import Float32
from lopa.runtime.cpu_kernels.kernel_library import KernelLibrary

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_NAME_FIELD, _CREATE_FIELD, _COMPUTE_FIELD = 2, 17, 18
"""Fields of an OrtCustomOp."""


class StandInRuntime:
    """A runtime whose sessions have `threads` threads, as the entry of their options says."""

    def __init__(self, library: KernelLibrary, threads: str) -> None:
        self._threads, self._operators = threads.encode(), list[int]()
        self._inputs: Sequence[npt.NDArray[np.generic]] = ()
        self._output = np.zeros(0, np.float32)
        self.tasks: list[int] = []
        """Number of tasks of each parallel loop."""
        self._table = (_POINTER * 300)()
        self._functions: list[object] = []
        methods = {0: "error", 26: "domain", 27: "add", 28: "nothing", 51: "data", 61: "rank", 62: "dimensions"}
        methods |= {
            65: "copy",
            86: "nothing",
            90: "input",
            91: "result",
            93: "nothing",
            99: "nothing",
            238: "entry",
            274: "parallel",
        }
        for slot, name in methods.items():
            self._table[slot] = self._pointer(getattr(self, f"_{name}"), _POINTER, 5)
        self._base = (_POINTER * 2)(self._pointer(lambda *_: ctypes.addressof(self._table), _POINTER, 1))
        assert not library.functions.RegisterCustomOps(None, self._base)

    def run(self, name: str, inputs: Sequence[npt.NDArray[np.generic]], columns: int) -> Float32:
        """Return the output of an operator."""
        self._inputs, self._output = inputs, np.zeros((len(inputs[0]), columns), np.float32)
        fields = next(each for each in map(self._fields, self._operators) if self._name(each) == name)
        kernel = _POINTER()
        create = ctypes.CFUNCTYPE(_POINTER, _POINTER, _POINTER, _POINTER, _POINTER)(fields[_CREATE_FIELD])
        assert not create(ctypes.addressof(fields), ctypes.addressof(self._table), None, ctypes.addressof(kernel))
        assert not ctypes.CFUNCTYPE(_POINTER, _POINTER, _POINTER)(fields[_COMPUTE_FIELD])(kernel, None)
        return self._output

    def _pointer(self, function: Any, result: Any, count: int) -> int | None:
        self._functions.append(ctypes.CFUNCTYPE(result, *[_POINTER] * count)(function))
        return ctypes.cast(self._functions[-1], _POINTER).value  # type: ignore[arg-type]

    def _fields(self, operator: int) -> Any:
        return (_POINTER * 22).from_address(operator)

    def _name(self, fields: Any) -> str:
        name: bytes = ctypes.CFUNCTYPE(ctypes.c_char_p, _POINTER)(fields[_NAME_FIELD])(None)
        return name.decode()

    def _array(self, value: int) -> npt.NDArray[np.generic]:
        return self._output if value == len(self._inputs) + 1 else self._inputs[value - 1]

    def _error(self, _: int, message: int, *__: int) -> int:
        raise AssertionError(ctypes.string_at(message).decode())

    def _nothing(self, *_: int) -> None:
        pass

    def _domain(self, _: int, out: int, *__: int) -> None:
        _POINTER.from_address(out).value = 1

    def _add(self, _: int, operator: int, *__: int) -> None:
        self._operators.append(operator)

    def _entry(self, _: int, name: int, text: int, __: int, ___: int) -> None:
        assert ctypes.string_at(name) == b"lopa.cpu.threads"
        ctypes.memmove(text, self._threads + b"\0", len(self._threads) + 1)

    def _copy(self, value: int, out: int, *_: int) -> None:
        _POINTER.from_address(out).value = value

    def _input(self, _: int, index: int | None, out: int, *__: int) -> None:
        _POINTER.from_address(out).value = (index or 0) + 1

    def _result(self, _: int, __: int, ___: int, ____: int, out: int) -> None:
        _POINTER.from_address(out).value = len(self._inputs) + 1

    def _data(self, value: int, out: int, *_: int) -> None:
        _POINTER.from_address(out).value = self._array(value).ctypes.data

    def _rank(self, value: int, out: int, *_: int) -> None:
        _SIZE.from_address(out).value = self._array(value).ndim

    def _dimensions(self, value: int, out: int, count: int, *_: int) -> None:
        shape = np.array(self._array(value).shape[:count], np.int64)
        ctypes.memmove(out, shape.ctypes.data, shape.nbytes)

    def _parallel(self, _: int, task: int, tasks: int, batches: int | None, data: int) -> None:
        assert batches is None
        self.tasks.append(tasks)
        call = ctypes.CFUNCTYPE(None, _POINTER, _SIZE)(task)
        for index in range(tasks):
            call(data, index)
