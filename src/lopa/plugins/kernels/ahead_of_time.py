"""Ahead-of-time compilation of a Triton kernel to PTX for a GPU that may be absent, to be launched without Triton."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

MAX_SHARED_BYTES = 48 * 1024
"""Bytes of shared memory that any launch may use. A kernel that needs more must have its limit raised by the launcher.
"""
_THREADS_OF_WARP = 32
_ALIGNED = [["tt.divisibility", 16]]
"""Attribute of every pointer: tensors start at multiples of 16 bytes."""


@dataclass(frozen=True)
class CompiledKernel:
    """Compiled kernel with launch parameters.

    It takes the arguments of the Triton kernel in the same order, without the constants.
    """

    name: str
    ptx: str
    threads: int
    """Threads per block, along the x axis."""
    shared_bytes: int
    """Bytes of dynamic shared memory."""
    rows: int
    """Rows per program: the constant ROWS, or 1 without it."""


def compiled_kernel(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    capability: tuple[int, int],
    *,
    warps: int = 4,
    stages: int = 1,
) -> CompiledKernel:
    """Compile `kernel` for a GPU of this compute capability, e.g. (9, 0).

    `types` has the arguments' types by name, "*fp16" for a pointer, "i32" for a number. `constants` has the other
    parameters. Raises ValueError if the tiles need more shared memory than MAX_SHARED_BYTES.
    """
    arguments = [name for name in kernel.arg_names if name not in constants]
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in kernel.arg_names},
        constexprs=dict(constants),
        attrs={
            (place,): _ALIGNED for place, name in enumerate(kernel.arg_names) if types.get(name, "").startswith("*")
        },
    )
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], _THREADS_OF_WARP)
    compiled = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    metadata = compiled.metadata
    if metadata.shared > MAX_SHARED_BYTES:
        raise ValueError(
            f"received tiles for which {metadata.name} needs {metadata.shared} bytes of shared memory, "
            f"expected at most {MAX_SHARED_BYTES}"
        )
    ptx = ptx_with_arguments(compiled.asm["ptx"], len(arguments))
    threads = metadata.num_warps * _THREADS_OF_WARP
    return CompiledKernel(metadata.name, ptx, threads, metadata.shared, constants.get("ROWS", 1))


def ptx_with_arguments(ptx: str, count: int) -> str:
    """Return the kernel with its first `count` parameters only.

    Triton appends parameters for scratch memory, which its own launcher fills. Raises ValueError if one of them is
    used.
    """
    entry = re.search(r"\.entry\s+\w+\(([^)]*)\)", ptx)
    if entry is None:
        raise ValueError("received PTX without a kernel, expected one .entry")
    parameters = entry[1].split(",")
    for added in parameters[count:]:
        name = added.split()[-1]
        if len(re.findall(rf"\b{name}\b", ptx)) > 1:
            raise ValueError(f"received a kernel that uses {name}, expected {count} arguments and no scratch memory")
    kept = ",".join(parameters[:count]).rstrip() + "\n"
    return ptx[: entry.start(1)] + kept + ptx[entry.end(1) :]
