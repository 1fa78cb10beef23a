"""Functions on numpy arrays that run in a process of kernels, since Triton chooses its mode when it is imported.

That process imports this module. Tests call it through the fixture `kernels`.
"""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def choose(interpreted: bool) -> None:
    """Choose the mode. This is the first call of the process."""
    os.environ["TRITON_INTERPRET"] = "1" if interpreted else "0"


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _tensors(*arrays: Array) -> list[Any]:
    import torch

    device = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
    return [
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
        if array.dtype == BFLOAT16
        else torch.from_numpy(array).to(device)
        for array in arrays
    ]


def _array(tensor: Any) -> Array:
    found: Array = (tensor.float() if tensor.element_size() == 2 else tensor).cpu().numpy()
    return found


def _factors(tensor: Any) -> dict[str, Any]:
    """Return the type of the products' factors. Triton's interpreter cannot multiply bfloat16, so it gets float32."""
    import torch
    import triton.language as tl

    interpreted = tensor.dtype == torch.bfloat16 and os.environ["TRITON_INTERPRET"] == "1"
    return {"FACTORS": tl.float32} if interpreted else {}


_FLOATS: Any = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def run_branch_attention(arrays: list[Array], rows: int, columns: int) -> Array:
    """Run the kernel on contiguous arrays in the order of its arguments."""
    import torch
    import triton

    from lopa.plugins.kernels.branch_attention_kernel import branch_attention_kernel
    from lopa.plugins.kernels.compiled_operators import attention_constants
    from lopa.plugins.launch_sizes import AttentionTiles

    query, *others = _tensors(*arrays)
    requests, branches, heads, width, size = query.shape
    kv_heads, prefix = arrays[3].shape[1:3]
    output = torch.empty_like(query)
    floats = _FLOATS[arrays[0].dtype.name]
    constants = attention_constants(floats, heads, kv_heads, size, AttentionTiles(rows, columns))
    grid = (triton.cdiv(branches * (heads // kv_heads) * width, rows), kv_heads, requests)
    numbers = (branches, width, prefix)
    branch_attention_kernel[grid](query, *others, *numbers, output, **{**constants, **_factors(query)})
    return _array(output)


def run_token_statistics(arrays: list[Array], tiles: tuple[int, int, int]) -> list[Array]:
    """Run both kernels. With N / n temperatures, each applies to n consecutive rows."""
    import torch
    import triton

    from lopa.plugins.kernels import compiled_operators as operators
    from lopa.plugins.kernels.token_statistics_kernel import statistics_merge_kernel, statistics_partials_kernel
    from lopa.plugins.launch_sizes import MAX_SPLITS, SPLIT_COLUMNS, HeadTiles
    from lopa.runtime.contract import TOP_K

    hidden, weight, temperature = _tensors(*arrays)
    (rows, size), vocabulary = hidden.shape, weight.shape[1]
    splits = min(MAX_SPLITS, triton.cdiv(vocabulary, SPLIT_COLUMNS))

    def empty(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.empty(shape, dtype=dtype, device=hidden.device)

    sums = [empty(rows, splits) for _ in range(3)]
    candidates = empty(rows, splits, TOP_K), empty(rows, splits, TOP_K, dtype=torch.int32)
    floats = _FLOATS[arrays[0].dtype.name]
    constants = operators.partials_constants(floats, size, vocabulary, splits, HeadTiles(*tiles))
    statistics_partials_kernel[(triton.cdiv(rows, tiles[0]), splits)](
        hidden,
        weight,
        temperature,
        rows,
        rows // len(temperature),
        *sums,
        *candidates,
        **{**constants, **_factors(hidden)},
    )
    ids, logprobs, entropy = empty(rows, TOP_K, dtype=torch.int32), empty(rows, TOP_K), empty(rows)
    statistics_merge_kernel[(rows,)](*sums, *candidates, ids, logprobs, entropy, **operators.merge_constants(splits))
    return [_array(tensor) for tensor in (ids, logprobs, entropy)]


def run_commit(windows: list[Array], caches: list[Array], where: dict[str, int]) -> list[Array]:
    """Copy rows of windows [R, B, Hkv, W, D] to the caches [slots, Hkv, P, D], and return the caches."""
    import torch
    import triton

    from lopa.plugins.kernels.commit_kernel import commit_kernel
    from lopa.plugins.kernels.compiled_operators import commit_constants
    from lopa.plugins.launch_sizes import COMMIT_ROWS

    sources, targets = _tensors(*windows), _tensors(*caches)
    pairs = [[rows.data_ptr(), target.data_ptr()] for rows, target in zip(sources, targets, strict=True)]
    addresses = torch.tensor(pairs, dtype=torch.int64, device=sources[0].device)
    _, branches, kv_heads, width, size = sources[0].shape
    count, window = where["count"], where["request"] * branches + where["branch"]
    numbers = (window, where["slot"], width, targets[0].shape[2], where["offset"], count)
    constants = commit_constants(_FLOATS[windows[0].dtype.name], kv_heads, size)
    if count:
        commit_kernel[(len(sources), kv_heads, triton.cdiv(count, COMMIT_ROWS))](addresses, *numbers, **constants)
    return [_array(target) for target in targets]


def compile_operator(name: str, arguments: tuple[Any, ...]) -> tuple[str, int, int, str]:
    """Return name, threads, shared bytes and PTX, which the assembler of Triton's wheel has accepted."""
    from lopa.plugins.kernels import compiled_operators

    compiled = getattr(compiled_operators, name)(*arguments)
    assemble(compiled.ptx)
    return compiled.name, compiled.threads, compiled.shared_bytes, compiled.ptx


def assemble(ptx: str) -> None:
    """Assemble PTX. Raises CalledProcessError for invalid PTX."""
    import triton.backends.nvidia

    folder = Path(triton.backends.nvidia.__file__).parent / "bin"
    target = ptx.split(".target ")[1].split()[0]
    assembler = folder / ("ptxas-blackwell" if target.startswith("sm_1") else "ptxas")
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        subprocess.run(
            [assembler, f"-arch={target}", "-o", os.devnull, file.name], check=True, capture_output=True, timeout=300
        )
