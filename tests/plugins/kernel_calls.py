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


def run_branch_attention(arrays: list[Array], rows: int, columns: int) -> Array:
    from lopa.plugins.kernels.branch_attention import branch_attention
    from lopa.plugins.launch_sizes import AttentionTiles

    return _array(branch_attention(*_tensors(*arrays), AttentionTiles(rows, columns)))


def run_token_statistics(arrays: list[Array], tiles: tuple[int, int, int]) -> list[Array]:
    from lopa.plugins.kernels.token_statistics import token_statistics
    from lopa.plugins.launch_sizes import HeadTiles

    return [_array(tensor) for tensor in token_statistics(*_tensors(*arrays), HeadTiles(*tiles))]


def run_commit(windows: list[Array], caches: list[Array], where: dict[str, int]) -> list[Array]:
    from lopa.plugins.kernels.commit import commit, commit_table

    table = commit_table(_tensors(*windows), _tensors(*caches))
    commit(table, **where)
    return [_array(cache) for cache in table.caches]


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
