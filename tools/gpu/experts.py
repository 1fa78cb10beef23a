"""Time a layer of experts on a GPU, for rows that choose at random: `python -m tools.gpu.experts [--device cuda:N]`.

A graph has the layer several times, so the GPU's cache holds none of its matrices. It runs as a CUDA graph.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from lopa.export.cuda_graph.nodes import DOMAIN
from lopa.runtime.cuda.cuda_calls import load_cuda
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.cuda_operators import loaded_library
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.sessions.cuda_libraries import load_cuda_libraries
from lopa.runtime.sessions.providers import cuda_providers
from tools.report import exit_on_error

KINDS = {
    "float": ("Experts", None, 0),
    "int8": ("ExpertsInt8", TensorProto.INT8, 8),
    "fp8": ("ExpertsFp8", TensorProto.FLOAT8E4M3FN, 8),
    "int4": ("ExpertsInt4", TensorProto.INT4, 4),
}
"""Operator, type and bits of the matrices by number format. Floats are those of the rows."""
_LAYERS, _ROUNDS = 8, 20


@dataclass(frozen=True)
class ExpertSizes:
    """Sizes of a layer. The default is LLaDA2.0-mini's."""

    experts: int = 256
    per_row: int = 8
    hidden: int = 2048
    size: int = 512
    floats: type[np.floating[Any]] = np.float16

    @property
    def element(self) -> int:
        """Type of rows in ONNX."""
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(self.floats)))


def graph_of_layers(folder: Path, sizes: ExpertSizes, kind: str) -> tuple[Path, float]:
    """Write a graph and its weights. Return its path, and the bytes of one expert."""
    operator, element, bits = KINDS[kind]
    path, offset, tensors, floats = folder / f"{kind}.onnx", 0, [], 8 * np.dtype(sizes.floats).itemsize
    numbers = np.random.default_rng(0).integers(0, 0x38, 1 << 20, dtype=np.uint8)  # small in any format
    with (folder / f"{kind}.data").open("wb") as file:
        for name in ("gate", "up", "down"):
            shape = (sizes.size, sizes.hidden) if name == "down" else (sizes.hidden, sizes.size)
            stored = shape[::-1] if kind == "fp8" else shape
            parts: list[tuple[str, int, int, tuple[int, ...]]] = [
                (name, element or sizes.element, bits or floats, stored)
            ]
            if kind == "int4":
                parts.append((f"{name}_scales", sizes.element, floats, (shape[0] // 32, shape[1])))
            elif bits:
                parts.append((f"{name}_scales", TensorProto.FLOAT, 32, shape[1:]))
            for part, dtype, width, dims in parts:
                length = sizes.experts * math.prod(dims) * width // 8
                file.write(np.resize(numbers, length).tobytes())
                tensor = TensorProto(name=part, data_type=dtype, dims=(sizes.experts, *dims))
                tensor.data_location = TensorProto.EXTERNAL
                for key, value in (("location", f"{kind}.data"), ("offset", offset), ("length", length)):
                    tensor.external_data.add(key=key, value=str(value))
                tensors.append(tensor)
                offset += length
    matrices = [tensor.name for tensor in tensors]
    nodes = [
        helper.make_node(operator, [f"x{n}", "ids", "weights", *matrices], [f"x{n + 1}", f"space{n}"], domain=DOMAIN)
        for n in range(_LAYERS)
    ]
    rows, routes = ["rows", sizes.hidden], ["rows", sizes.per_row]
    graph = helper.make_graph(
        nodes,
        "experts",
        [
            helper.make_tensor_value_info("x0", sizes.element, rows),
            helper.make_tensor_value_info("ids", TensorProto.INT64, routes),
            helper.make_tensor_value_info("weights", TensorProto.FLOAT, routes),
        ],
        [helper.make_tensor_value_info(f"x{_LAYERS}", sizes.element, rows)],
        tensors,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path, offset / sizes.experts


def measured(device: str, sizes: ExpertSizes, kind: str, all_rows: tuple[int, ...]) -> Iterator[str]:
    """Yield a line for each number of rows. Raises MissingBackendError without the operators."""
    number, rng = parse_device(device, "cuda").number, np.random.default_rng(0)
    load_cuda_libraries()
    memory = CudaMemory(load_cuda(), number)
    library = loaded_library(number)
    if isinstance(library, str):
        raise MissingBackendError(library, expected="this project's operators", remedy="see lopa-export doctor")
    with tempfile.TemporaryDirectory() as folder:
        path, of_expert = graph_of_layers(Path(folder), sizes, kind)
        options = ort.SessionOptions()
        library.add_operators(options)
        providers = cuda_providers(device, user_compute_stream=str(memory.stream), enable_cuda_graph="1")
        session = ort.InferenceSession(str(path), options, providers=providers)
        for place, rows in enumerate(all_rows):
            ids = np.argsort(rng.random((rows, sizes.experts)), -1)[:, : sizes.per_row]
            x = rng.standard_normal((rows, sizes.hidden)).astype(sizes.floats)
            binding = session.io_binding()
            for name, array in (("x0", x), ("ids", ids), ("weights", rng.random(ids.shape, np.float32))):
                address = memory.allocate(array.nbytes)
                memory.upload(address, array)
                binding.bind_input(name, "cuda", number, array.dtype.type, array.shape, address)
            binding.bind_output(f"x{_LAYERS}", "cuda", number, sizes.floats, x.shape, memory.allocate(x.nbytes))
            run, seconds = ort.RunOptions(), []
            run.add_run_config_entry("gpu_graph_id", str(place + 1))
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                session.run_with_iobinding(binding, run)
                memory.synchronize()
                seconds.append(time.perf_counter() - began)
            layer, touched = statistics.median(seconds) / _LAYERS, len(np.unique(ids))
            size = touched * of_expert
            yield (
                f"{kind:8} {rows:5} rows {touched:4} experts {size / 1e6:7.0f} MB {layer * 1e6:8.1f} us a layer"
                f" {size / layer / 1e12:6.2f} TB/s"
            )
        del session
    memory.close()


@click.command()
@click.option("--device", default="cuda:0", show_default=True, help="cuda:N.")
def main(device: str) -> None:
    """Print the time of a layer of LLaDA2.0-mini's experts by number format and rows."""
    for kind in KINDS:
        for line in measured(device, ExpertSizes(), kind, (1, 8, 32, 256, 1024)):
            click.echo(line)


if __name__ == "__main__":
    with exit_on_error():
        main()
