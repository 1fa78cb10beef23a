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
    """Argument that points into an array, or into that of an earlier argument."""

    source: int | Array
    offset: int
    """Elements from the start of that array."""


def choose(interpreted: bool) -> None:
    """Choose the mode. This is the first call of the process."""
    os.environ["TRITON_INTERPRET"] = "1" if interpreted else "0"
    if interpreted:
        _interpret_bfloat16()
        _patch_once()


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


def _patch_once() -> None:
    """Patch Triton's language once per launch. Triton patches it in every call of a function, a third of the time."""
    import triton.language as tl
    from triton.runtime import interpreter

    launch, patch_modules = interpreter.GridExecutor.__call__, interpreter._patch_lang
    patched: set[str] = set()

    def launched(*arguments: Any, **options: Any) -> Any:
        patched.clear()
        return launch(*arguments, **options)

    def patch(function: Any) -> Any:
        names = {each.__name__ for each in function.__globals__.values() if each is tl or each is tl.core}
        if names <= patched:
            return None
        patched.update(names)
        return patch_modules(function)

    interpreter.GridExecutor.__call__, interpreter._patch_lang = launched, patch


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
    for n, argument in enumerate(given):
        if isinstance(argument, View):
            tensor = given[argument.source] if isinstance(argument.source, int) else _tensor(argument.source)
            given[n] = tensor.view(-1)[argument.offset :]
    if "WORD" in constants:
        constants = constants | {"WORD": getattr(tl, constants["WORD"])}
    KERNELS[kernel][0][grid](*given, **constants)
    return [_array(given[n]) for n, argument in enumerate(arguments) if isinstance(argument, np.ndarray)]


def run_commit(slabs: list[Array], pieces: list[tuple[int, ...]], numbers: list[int], word: int) -> list[Array]:
    """Copy rows between slabs [rows, size], as words of some bytes, and return the slabs.

    A piece is a slab and its first row to read, a slab and its first row to write, and the number of rows. Numbers are
    arrays, heads, and three distances between rows of the source and of the target.
    """
    import torch

    tensors = [_tensor(slab) for slab in slabs]
    size = slabs[0].shape[1] * slabs[0].itemsize
    table = [
        [tensors[a].data_ptr() + from_row * size, tensors[b].data_ptr() + to_row * size, count]
        for a, from_row, b, to_row, count in pieces
    ]
    arrays, heads, *strides = numbers
    constants = {"WORD": f"int{8 * word}", "WORDS": 8, "ROWS": 8}
    grid = (len(pieces), arrays * heads, -(-max(piece[-1] for piece in pieces) // 8))
    run("commit", grid, [torch.tensor(table).numpy(), heads, *strides, size // word], constants)
    return [_array(tensor) for tensor in tensors]


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
