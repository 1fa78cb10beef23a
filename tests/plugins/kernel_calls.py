"""Functions on numpy arrays that run in a process of kernels, since Triton chooses its mode when it is imported.

That process imports this module. Tests call it through the fixture `kernels`.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class View(NamedTuple):
    """Argument that points into the array of an earlier argument."""

    argument: int
    offset: int
    """Elements from the start of that array."""


def choose(interpreted: bool) -> None:
    """Choose the mode. This is the first call of the process."""
    os.environ["TRITON_INTERPRET"] = "1" if interpreted else "0"
    if interpreted:
        _interpret_bfloat16()


def _interpret_bfloat16() -> None:
    """Round to bfloat16 as GPUs do, and multiply it, which Triton's interpreter cannot: it keeps bfloat16 as bits."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def rounded(data: Array, source: Any, target: Any, mode: Any) -> Array:
        if (source, target) == (tl.float32, tl.bfloat16):
            return data.astype(BFLOAT16).view(np.uint16)
        return np.asarray(convert(data, source, target, mode))

    def product(builder: Any, a: Any, b: Any, *others: Any) -> Any:
        wide = [
            interpreter.TensorHandle(x.data.view(BFLOAT16).astype(np.float32), tl.float32)
            if x.dtype.scalar == tl.bfloat16
            else x
            for x in (a, b)
        ]
        return dot(builder, *wide, *others)

    interpreter._convert_float = rounded
    interpreter.InterpreterBuilder.create_dot = product


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _tensor(array: Array) -> Any:
    import torch

    device = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
    tensor = torch.from_numpy(array.view(np.int16) if array.dtype == BFLOAT16 else array).to(device)
    return tensor.view(torch.bfloat16) if array.dtype == BFLOAT16 else tensor


def _array(tensor: Any) -> Array:
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).cpu().numpy().view(BFLOAT16))
    return np.asarray(tensor.cpu().numpy())


def run(kernel: str, grid: tuple[int, ...], arguments: list[Any], constants: dict[str, Any]) -> list[Array]:
    """Launch a kernel of lopa.plugins.kernels.variants, and return the arrays among `arguments` afterwards.

    Arguments are arrays, numbers and Views. The constant WORD is the name of a type of Triton.
    """
    import triton.language as tl

    from lopa.plugins.kernels.variants import KERNELS

    given = [_tensor(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]
    given = [
        given[argument.argument].view(-1)[argument.offset :] if isinstance(argument, View) else argument
        for argument in given
    ]
    if "WORD" in constants:
        constants = constants | {"WORD": getattr(tl, constants["WORD"])}
    KERNELS[kernel][0][grid](*given, **constants)
    return [_array(given[n]) for n, argument in enumerate(arguments) if isinstance(argument, np.ndarray)]


def run_commit(windows: list[Array], caches: list[Array], numbers: tuple[int, ...], word: int) -> list[Array]:
    """Copy rows of windows [R, B, Hkv, W, D] to the caches [slots, Hkv, P, D] as words of some bytes.

    `numbers` are window, slot, offset and count. The result has the caches.
    """
    import torch

    sources, targets = [_tensor(each) for each in windows], [_tensor(each) for each in caches]
    pairs = [[rows.data_ptr(), target.data_ptr()] for rows, target in zip(sources, targets, strict=True)]
    addresses = torch.tensor(pairs, dtype=torch.int64).numpy()
    _, _, kv_heads, width, size = windows[0].shape
    words = size * windows[0].dtype.itemsize // word
    window, slot, offset, count = numbers
    arguments = [addresses, window, slot, width, caches[0].shape[2], offset, count, kv_heads, words]
    constants = {"WORD": f"int{8 * word}", "WORDS": 8, "ROWS": 8}
    if count:
        run("commit", (len(windows), kv_heads, -(-count // 8)), arguments, constants)
    return [_array(target) for target in targets]


def write_archive(path: Path, target: str, names: tuple[str, ...]) -> None:
    """Write an archive of some variants."""
    from lopa.plugins.kernels import archive

    archive.write_archive(path, target, 1, names)


def variants_of_targets() -> dict[str, tuple[list[str], int]]:
    """Return the names of the variants of each target, and the KiB of its shared memory."""
    from lopa.plugins.kernels.archive import TARGETS
    from lopa.plugins.kernels.variants import MAX_SHARED_KIB, variants

    return {name: (list(variants(target.number)), MAX_SHARED_KIB[target.number]) for name, target in TARGETS.items()}


def argument_names() -> dict[str, list[str]]:
    """Return the names of each kernel's arguments in order, without constants."""
    from lopa.plugins.kernels.variants import KERNELS

    return {name: list(kernel.arg_names)[: len(types)] for name, (kernel, types) in KERNELS.items()}
