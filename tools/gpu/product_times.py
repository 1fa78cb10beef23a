"""Times of the products of a layer with quantized matrices, by our kernels and by cuBLAS: a table on standard output.

    python -m tools.gpu.product_times [--like NAME] [--rows 1 32 64 128 256 1024]

Each product reads another copy of its matrix each time, so that no cache holds it. Without a GPU,
TRITON_INTERPRET=1 runs each product once, which is slow: use a small likeness.
"""

import argparse
import itertools
import time
from collections.abc import Callable

import torch
from triton.testing import do_bench_cudagraph

from lopa.plugins.kernels.variants import KERNELS, PRODUCT_COLUMNS, PRODUCT_ROWS, variants
from tools.checkpoint.likeness import LIKENESSES

_COPIES_BYTES = 1 << 28
"""Bytes of the copies of a matrix, more than any cache has."""


def main() -> None:
    """Print microseconds of each product by rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", choices=LIKENESSES, default="dream-7b")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 64, 128, 256, 1024])
    choices = parser.parse_args()
    sizes, has_gpu = LIKENESSES[choices.like].dimensions, torch.cuda.is_available()
    kv, inner = sizes.kv_heads * sizes.head_size, sizes.heads * sizes.head_size
    shapes = {
        "query, key, value": (sizes.hidden_size, inner + 2 * kv),
        "output": (inner, sizes.hidden_size),
        "gate, up": (sizes.hidden_size, 2 * sizes.intermediate_size),
        "down": (sizes.intermediate_size, sizes.hidden_size),
    }
    torch.set_default_device("cuda" if has_gpu else "cpu")
    print("| product | rows | " + " | ".join(_SIDES) + " |\n|---|---:|" + "---:|" * len(_SIDES))
    for (name, (inputs, outputs)), rows in itertools.product(shapes.items(), choices.rows):
        times = []
        for side in _SIDES.values():
            try:
                calls = itertools.cycle(side(rows, inputs, outputs))
                times.append(f"{_microseconds(calls, has_gpu):.1f}")
            except (RuntimeError, ValueError, NotImplementedError) as error:  # e.g. no FP8 on this GPU
                times.append(type(error).__name__)
        print(f"| {name} | {rows} | " + " | ".join(times) + " |", flush=True)


def _microseconds(calls: "itertools.cycle[Callable[[], object]]", has_gpu: bool) -> float:
    if has_gpu:
        some = list(itertools.islice(calls, 16))
        return float(do_bench_cudagraph(lambda: [call() for call in some])) * 1e3 / len(some)
    began = time.perf_counter()
    next(calls)()
    return (time.perf_counter() - began) * 1e6


def _copies(size: int) -> int:
    return max(1, min(16, _COPIES_BYTES // size)) if torch.cuda.is_available() else 1


def _ours(kind: str, rows: int, inputs: int, outputs: int) -> list[Callable[[], object]]:
    """Return calls of a kernel, with the parts of operators.cpp, on several matrices."""
    has_gpu = torch.cuda.is_available()
    target = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1] if has_gpu else 90
    processors = torch.cuda.get_device_properties(0).multi_processor_count if has_gpu else 4
    tile = next((each for each in PRODUCT_ROWS if each >= rows), PRODUCT_ROWS[-1])
    tiles = -(-outputs // PRODUCT_COLUMNS)
    wanted = max(1, min(8, 2 * processors // tiles, inputs // 256))
    each = -(-inputs // (64 * wanted)) * 64
    parts = -(-inputs // each)
    name = "int4_product.bf16" if kind == "int4" else f"rounded_product.bf16.{kind}"
    variant = variants(target)[f"{name}.{tile}"]
    kernel, merge = KERNELS[variant.kernel][0], KERNELS["product_merge"][0]
    output = torch.empty(rows, outputs, dtype=torch.bfloat16)
    scratch = torch.empty(parts * rows * outputs)

    def call(weight: torch.Tensor) -> Callable[[], object]:
        if kind == "int4":
            scales = torch.ones(inputs // 32, outputs, dtype=torch.bfloat16)
            given = [torch.ones(rows, inputs, dtype=torch.bfloat16), weight, scales]
        else:
            given = [torch.zeros(rows, inputs, dtype=torch.int8), weight]
        numbers = [rows, inputs, outputs, each, *([] if kind == "int4" else [1.0])]
        grid = (tiles, -(-rows // tile), parts)
        options = {"num_warps": variant.warps, "num_stages": variant.stages}

        def run() -> None:
            kernel[grid](*given, output, scratch, *numbers, **variant.constants, **options)
            if parts > 1:
                merge[(-(-rows * outputs // 1024),)](scratch, output, parts, rows * outputs, BLOCK=1024)

        return run

    words, dtype = (outputs // 8, torch.int32) if kind == "int4" else (outputs, torch.int8)
    shape = (outputs, inputs) if kind == "e4m3" else (inputs, words)
    size = inputs * outputs // (2 if kind == "int4" else 1)
    return [call(torch.zeros(shape, dtype=dtype)) for _ in range(_copies(size))]


def _cublas(rows: int, inputs: int, outputs: int) -> list[Callable[[], object]]:
    x = torch.ones(rows, inputs, dtype=torch.bfloat16)
    matrices = [torch.ones(inputs, outputs, dtype=torch.bfloat16) for _ in range(_copies(2 * inputs * outputs))]
    return [lambda matrix=matrix: x @ matrix for matrix in matrices]  # type: ignore[misc]


def _cublaslt_fp8(rows: int, inputs: int, outputs: int) -> list[Callable[[], object]]:
    """Return products with one scale, as the operator has them."""
    dtype, one = torch.float8_e4m3fn, torch.ones(())
    x = torch.ones(rows, inputs).to(dtype)
    matrices = [torch.ones(outputs, inputs).to(dtype) for _ in range(_copies(inputs * outputs))]
    return [
        lambda matrix=matrix: torch._scaled_mm(x, matrix.T, one, one, out_dtype=torch.bfloat16)  # type: ignore[misc]
        for matrix in matrices
    ]


_SIDES: dict[str, Callable[[int, int, int], list[Callable[[], object]]]] = {
    "bfloat16, cuBLAS": _cublas,
    "e4m3, cuBLASLt": _cublaslt_fp8,
    **{
        f"{kind}, our kernel": lambda rows, inputs, outputs, kind=kind: _ours(kind, rows, inputs, outputs)  # type: ignore[misc]
        for kind in ("int4", "int8", "e4m3")
    },
}

if __name__ == "__main__":
    main()
