"""Program that calls the operators of lopa.cuda in ONNX Runtime, with the stand-in for NVIDIA's driver.

It writes the results of right calls to the file that its argument names (npz), and prints the errors of wrong ones as
JSON. It runs in a process of its own.
"""

import json
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from tests.plugins.experts_reference import StackedMatrix, random_matrix
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.cuda_kernels.compiled_sample import compiled_sample
from tests.runtime.cuda_kernels.stand_in_driver import StandInDriver

from lopa.runtime.contract.packed_batch import CanvasRows, PackedBatch
from lopa.runtime.cuda_kernels.attention_tasks import AttentionHeads, attention_work
from lopa.runtime.cuda_kernels.kernel_archive import archive_of_file

FLOAT, INT32, INT64, UINT8 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8
HEADS = {"heads": 4, "kv_heads": 2, "head_size": 16}
ONE = np.ones((2, 32), np.float32)
ANGLES = np.ones((2, 8), np.float32)
FUSED = np.ones((1, 2, 128), np.float32)
QUERY, ROWS = np.ones((1, 2, 64), np.float32), np.ones((2, 2, 16), np.float32)
NOTHING = np.zeros(8, np.int32)
ATTENTION: list[Any] = [QUERY, ROWS, ROWS, np.ones(64, np.float32), NOTHING, np.zeros(0, np.float32)]
LOGITS = np.ones((2, 32), np.float32)
TEMPERATURE = np.ones(2, np.float32)
BYTES = np.zeros((32, 32), np.uint8)


RNG = np.random.default_rng(62)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def scales(*shape: int) -> Any:
    return np.exp(normal(*shape))


def codes(*shape: int) -> Any:
    """Return bytes of int8 and of e4m3, without NaN."""
    return RNG.integers(0, 256, shape, np.uint8) & np.uint8(0xF7)


E4M3 = {"e4m3": 1}
BY_KERNEL = "e4m3 product by a kernel"
"""Call for which cuBLASLt has no algorithm."""


PREFIXES = [600, 64, 0]
"""Cached rows. The first request's are split into parts."""
LENGTHS = np.array([5, 3, 1, 4, 2, 7])
BATCH = PackedBatch(
    requests=(7, 3, 5),
    temperature=np.ones(3, np.float32),
    slots=np.array([0, 0, 0, 1, 2, 2]),
    lengths=LENGTHS,
    input_ids=np.zeros(22, np.int64),
    position_ids=np.zeros(22, np.int64),
    mask=RNG.random(LENGTHS @ LENGTHS) < 0.6,
    sampled_rows=np.zeros(1, np.int64),
)
PLACES = np.concatenate([np.arange(length) for length in LENGTHS])
POSITIONS = np.array(PREFIXES)[BATCH.slots].repeat(LENGTHS) + PLACES
STARTS = POSITIONS - RNG.integers(0, 300, len(POSITIONS))
"""Rows of a canvas see only some of the cached rows, and of their windows."""
CANVAS = CanvasRows(np.ones(22, np.bool_), STARTS, np.full(22, -1), np.zeros(1, np.float32))
PADDED, LAYERS, SLABS = 26, 3, 3
"""Rows with padding, layers, and allocations with chunks."""
CHUNKS = normal(12, 2 * LAYERS, 2, 64, 16)
TURNED = np.cos(normal(20, 4)), np.sin(normal(20, 4))
RIGHT: dict[str, tuple[str, dict[str, Any], list[Any], int]] = {
    "norm": ("RmsNorm", {"epsilon": 0.5}, [normal(3, 48), normal(48)], 1),
    "sum and norm": ("SkipRmsNorm", {"epsilon": 0.5}, [normal(2, 3, 720), normal(2, 3, 720), normal(720)], 2),
    "fused rotary": (
        "SplitRotary",
        HEADS,
        [normal(1, 20, 128), *TURNED, None, None, normal(128)],
        3,
    ),
    "rotary with norms": (
        "SplitRotary",
        HEADS | {"epsilon": 0.5},
        [normal(1, 20, 64), *TURNED, normal(20, 32), normal(20, 32), None, normal(16), normal(16)],
        3,
    ),
    "attention": (
        "BranchAttention",
        HEADS | {"layer": 1},
        [normal(1, PADDED, 64), normal(PADDED, 2, 16), normal(PADDED, 2, 16)],  # with_cache adds the others
        1,
    ),
    "sliding attention": (
        "BranchAttention",
        HEADS | {"layer": 1, "width": 48, "scale": 0.5, "sliding": 1},
        [normal(1, PADDED, 64), normal(PADDED, 1, 48), normal(PADDED, 1, 48)],
        1,
    ),
    "rotary of wide rows": (
        "SplitRotary",
        HEADS | {"epsilon": 0.5, "width": 48, "value_norm": 1, "shared_value": 1},
        [normal(1, 20, 96), *TURNED, None, None, None, normal(16), normal(16), scales(20), scales(96)],
        3,
    ),
    "wide rotary of two products": (
        "SplitRotary",
        HEADS | {"epsilon": 0.5, "width": 32, "value_norm": 1, "shared_value": 1},
        [normal(1, 20, 64), *TURNED, normal(20, 32), None, None, normal(16), normal(16)],
        3,
    ),
    "gelu": ("SwiGlu", {"gelu": 1}, [normal(2, 3, 96)], 1),
    "rounded gelu": ("RoundedSwiGlu", {"gelu": 1}, [normal(6, 80), normal(6, 80)], 2),
    "fused product": ("SwiGlu", {}, [normal(2, 3, 4096)], 1),
    "product": ("SwiGlu", {}, [normal(6, 1040), normal(6, 1040)], 1),
    "scaled sum and norm": (
        "SkipRmsNorm",
        {"epsilon": 0.5},
        [normal(2, 3, 720), normal(2, 3, 720), normal(720), scales(6), scales(720)],
        2,
    ),
    "rounded norm": ("RoundedRmsNorm", {"epsilon": 0.5, **E4M3}, [normal(3, 48), normal(48)], 2),
    "rounded sum and norm": (
        "RoundedSkipRmsNorm",
        {"epsilon": 0.5},
        [normal(2, 3, 720), normal(2, 3, 720), normal(720), scales(6), scales(720)],
        3,
    ),
    "scaled rotary": (
        "SplitRotary",
        HEADS,
        [normal(1, 20, 128), *TURNED, None, None, normal(128), None, None, scales(20), scales(128)],
        3,
    ),
    "scaled gate": ("SwiGlu", {}, [normal(2, 3, 160), None, scales(6), scales(160)], 1),
    "rounded gate": ("RoundedSwiGlu", E4M3, [normal(2, 3, 160), None, scales(6), scales(160)], 2),
    "rounded gate of two": ("RoundedSwiGlu", {}, [normal(6, 80), normal(6, 80)], 2),
    "rounded rows": ("RoundRows", E4M3, [normal(2, 3, 96)], 2),
    "scaled rows": ("ScaleRows", {}, [normal(2, 3, 96), scales(6), scales(96)], 1),
    "int4 product": ("Int4Product", {}, [normal(1, 7, 96), codes(96, 136), scales(3, 272)], 1),
    "int4 product in parts": ("Int4Product", {}, [normal(300, 768), codes(768, 24), scales(24, 48)], 1),
    "int8 product": ("RoundedProductFloat", {}, [codes(1, 5, 48), codes(48, 144)], 1),
    "int8 product in parts": ("RoundedProductFloat", {}, [codes(70, 608), codes(608, 144)], 1),
    "e4m3 product": ("RoundedProductFloat", E4M3, [codes(2, 3, 96), codes(144, 96)], 1),
    BY_KERNEL: ("RoundedProductFloat", E4M3, [codes(33, 608), codes(144, 608)], 1),
    "statistics": (
        "TokenStatistics",
        {"candidates": 8},
        [4 * normal(6, 9001), np.array([0.5, 2.0, 1.0, 0.7, 1.5, 1.1], np.float32)],
        3,
    ),
}
ROUTED = [normal(2, 35, 64), np.argsort(normal(2, 35, 6), -1)[..., :3], np.abs(normal(2, 35, 3))]
"""Rows, ids and weights. The last of 7 experts has no rows, and others have several tiles."""
MATRICES = {
    kind: [random_matrix(RNG, kind, "fp32", 7, *shape) for shape in ((64, 96), (64, 96), (96, 64))]
    for kind in ("float", "int4", "int8", "fp8")
}
_EXPERTS = {"float": "Experts", "int4": "ExpertsInt4", "int8": "ExpertsInt8", "fp8": "ExpertsFp8"}


def stored_tensors(matrices: list[StackedMatrix]) -> list[Any]:
    """Return matrices, and their scales if they have some. ONNX Runtime takes int4 and e4m3 from graphs only."""
    if matrices[0].kind == "float":
        return [each.stored for each in matrices]
    element = {"int4": TensorProto.INT4, "int8": TensorProto.INT8, "fp8": TensorProto.FLOAT8E4M3FN}[matrices[0].kind]
    found: list[Any] = []
    for each in matrices:
        stored, scales = each.stored, each.scales
        shape = (*stored.shape[:2], 2 * stored.shape[2]) if each.kind == "int4" else stored.shape
        found += [helper.make_tensor("stored", element, shape, stored.tobytes(), raw=True), scales]
    return found


RIGHT |= {
    f"experts in {kind}": (_EXPERTS[kind], {}, [*ROUTED, *stored_tensors(matrices)], 1)
    for kind, matrices in MATRICES.items()
}
RIGHT["experts with gelu"] = ("Experts", {"gelu": 1}, RIGHT["experts in float"][2], 1)
RIGHT["experts of one row"] = ("Experts", {}, [each[0, :1] for each in ROUTED] + stored_tensors(MATRICES["float"]), 1)
"""Operator, attributes, inputs and number of compared outputs by name."""


def changed(inputs: list[Any], place: int, value: Any) -> list[Any]:
    return [value if index == place else each for index, each in enumerate(inputs)]


EXPERTS, EXPERTS8 = ([*ROUTED, *stored_tensors(MATRICES[kind])] for kind in ("float", "int8"))
CALLS: dict[str, tuple[str, dict[str, Any], list[Any], int]] = {
    "norm": ("RmsNorm", {"epsilon": 1e-6}, [ONE, ONE[0]], 1),
    "norm with another weight": ("RmsNorm", {"epsilon": 1e-6}, [ONE, ONE[0, :16]], 1),
    "norm of rows that differ": ("SkipRmsNorm", {"epsilon": 1e-6}, [ONE, ONE[:1], ONE[0]], 2),
    "rotary": ("SplitRotary", HEADS, [FUSED, ANGLES, ANGLES], 3),
    "rotary of too few channels": ("SplitRotary", HEADS, [FUSED[..., :96], ANGLES, ANGLES], 3),
    "rotary without an angle": ("SplitRotary", HEADS, [FUSED, ANGLES[:1], ANGLES[:1]], 3),
    "rotary with one norm": ("SplitRotary", HEADS, [FUSED, ANGLES, ANGLES, None, None, None, ONE[0, :16]], 3),
    "rotary with a short bias": ("SplitRotary", HEADS, [FUSED, ANGLES, ANGLES, None, None, ONE[0]], 3),
    "rotary of shared values of all heads": ("SplitRotary", HEADS | {"shared_value": 1}, [FUSED, ANGLES, ANGLES], 3),
    "attention of narrow rows": ("BranchAttention", HEADS | {"width": 48}, ATTENTION, 1),
    "rotary with keys alone": ("SplitRotary", HEADS, [QUERY, ANGLES, ANGLES, ONE], 3),
    "attention": ("BranchAttention", HEADS, ATTENTION, 1),
    "attention to other heads": ("BranchAttention", HEADS, changed(ATTENTION, 1, ROWS[:, :1]), 1),
    "attention to few rows": ("BranchAttention", HEADS, changed(ATTENTION, 2, ROWS[:1]), 1),
    "attention of wide rows": ("BranchAttention", HEADS, changed(ATTENTION, 0, FUSED), 1),
    "attention to caches": ("BranchAttention", HEADS, changed(ATTENTION, 3, ONE), 1),
    "attention without lists": ("BranchAttention", HEADS, changed(ATTENTION, 4, NOTHING[:7]), 1),
    "attention with scratch rows": ("BranchAttention", HEADS, changed(ATTENTION, 5, ONE), 1),
    "product": ("SwiGlu", {}, [ONE], 1),
    "product of odd rows": ("SwiGlu", {}, [ONE[:, :31]], 1),
    "product of other sizes": ("SwiGlu", {}, [ONE, ONE[:, :16]], 1),
    "norm of scaled rows": ("SkipRmsNorm", {"epsilon": 1e-6}, [ONE, ONE, ONE[0], ONE[0], ONE[0]], 2),
    "product of rows with one scale": ("SwiGlu", {}, [ONE, None, ONE[0, :2]], 1),
    "scaled rows of other sizes": ("ScaleRows", {}, [ONE, ONE[0, :2], ONE[0, :16]], 1),
    "int4 product of another size": ("Int4Product", {}, [ONE, BYTES, ONE], 2),
    "int4 product of narrow blocks": ("Int4Product", {}, [ONE, BYTES[:, :8], ONE[:, :16]], 2),
    "int4 product of few outputs": ("Int4Product", {}, [ONE, BYTES[:, :4], ONE[:1, :8]], 2),
    "int8 product of another size": ("RoundedProductFloat", {}, [BYTES, BYTES[:16]], 2),
    "e4m3 product of another size": ("RoundedProductFloat", E4M3, [BYTES, BYTES[:, :16]], 2),
    "int8 product of odd outputs": ("RoundedProductFloat", {}, [BYTES, BYTES[:, :24]], 2),
    "statistics": ("TokenStatistics", {"candidates": 8}, [LOGITS, TEMPERATURE], 4),
    "statistics of few tokens": ("TokenStatistics", {"candidates": 8}, [LOGITS[..., :7], TEMPERATURE], 4),
    "statistics of windows": ("TokenStatistics", {"candidates": 8}, [LOGITS[None], TEMPERATURE], 4),
    "statistics with one temperature": ("TokenStatistics", {"candidates": 8}, [LOGITS, TEMPERATURE[:1]], 4),
    "experts": ("Experts", {}, EXPERTS, 2),
    "rowless": ("Experts", {}, [each[:, :0] for each in ROUTED] + EXPERTS[3:], 2),
    "experts of other rows": ("Experts", {}, changed(EXPERTS, 0, ROUTED[0][..., :32]), 2),
    "experts of few rows": ("Experts", {}, changed(EXPERTS, 0, ROUTED[0][:1]), 2),
    "experts with few weights": ("Experts", {}, changed(EXPERTS, 2, ROUTED[2][..., :2]), 2),
    "experts with another gate": ("Experts", {}, changed(EXPERTS, 3, EXPERTS[3][:6]), 2),
    "experts with a short product": ("Experts", {}, changed(EXPERTS, 5, EXPERTS[5][:, :80]), 2),
    "experts without a choice": ("Experts", {}, [ROUTED[0], *(each[..., :0] for each in ROUTED[1:]), *EXPERTS[3:]], 2),
    "experts with short scales": ("ExpertsInt8", {}, changed(EXPERTS8, 4, EXPERTS8[4][:, :80]), 2),
    "statistics without a kernel": ("TokenStatistics", {"candidates": 16}, [LOGITS, TEMPERATURE], 4),
}
"""Operator, attributes, inputs and number of outputs by name. Those with one word are right."""
_TYPES = {"float32": FLOAT, "int32": INT32, "int64": INT64, "uint8": UINT8}
_COUNTS = {"TokenStatistics": 4, "Int4Product": 2, "RoundedProductFloat": 2, **dict.fromkeys(_EXPERTS.values(), 2)}
"""Outputs, where the last is a workspace."""
_OUTPUTS = {
    "TokenStatistics": (INT64, FLOAT, FLOAT, FLOAT),
    **dict.fromkeys(("RoundRows", "RoundedRmsNorm", "RoundedSwiGlu"), (UINT8, FLOAT)),
    "RoundedSkipRmsNorm": (UINT8, FLOAT, FLOAT),
}


def with_cache(cudart: StandInCudart, attributes: dict[str, Any]) -> list[Any]:
    """Return the attention's last inputs: the middle one of several slabs, the lists and scratch memory.

    The chunks are spread over the slabs, which hold NaN elsewhere.
    """
    cudart.cudaSetDevice(0)
    all_chunks, batch, heads = CHUNKS, BATCH, [AttentionHeads(4, 2, 16)]
    if "sliding" in attributes:
        all_chunks = np.full((len(CHUNKS), 2 * LAYERS, 64, 48), np.nan, np.float32)
        all_chunks[..., :32] = CHUNKS.swapaxes(2, 3).reshape(*all_chunks.shape[:3], 32)
        batch, heads = replace(BATCH, position_ids=POSITIONS, canvas=CANVAS), [AttentionHeads(4, 1, 32), *heads]
    slabs = sorted(cudart.cudaMalloc(all_chunks.nbytes)[1] for _ in range(SLABS))
    offsets = []
    for chunk, place in zip(all_chunks, RNG.permutation(SLABS * len(all_chunks)).tolist(), strict=False):
        address = slabs[place % SLABS] + place // SLABS * chunk.nbytes
        cudart.view(address, chunk.nbytes)[:] = np.frombuffer(chunk.tobytes(), np.uint8)
        offsets.append((address - slabs[1]) // chunk.itemsize)
    first = [0, *np.cumsum([-(-prefix // 64) for prefix in PREFIXES]).tolist()]
    chunks = [offsets[begin:end] for begin, end in pairwise(first)]
    work = attention_work(batch, PADDED, PREFIXES, chunks, *heads)
    cache = cudart.view(slabs[1], all_chunks.nbytes).view(np.float32)
    return [cache, work.words, np.full(work.scratch, np.nan, np.float32)]


def results(driver: StandInDriver, name: str, attributes: dict[str, Any], inputs: list[Any], outputs: int) -> list[Any]:
    """Run an operator and return its outputs."""
    session, values = opened(driver, name, attributes, inputs, outputs)
    found: list[Any] = session.run(None, values)
    return found


def opened(
    driver: StandInDriver, name: str, attributes: dict[str, Any], inputs: list[Any], outputs: int
) -> tuple[ort.InferenceSession, dict[str, Any]]:
    """Return a session with an operator, for inputs of any length, and its inputs."""
    names = ["" if each is None else f"in{index}" for index, each in enumerate(inputs)]
    found = [f"out{index}" for index in range(outputs)]
    node = helper.make_node(name, names, found, domain="lopa.cuda", **attributes)
    values = {each: value for each, value in zip(names, inputs, strict=True) if isinstance(value, np.ndarray)}
    stored = [
        helper.make_tensor(each, tensor.data_type, tensor.dims, tensor.raw_data, raw=True)
        for each, tensor in zip(names, inputs, strict=True)
        if isinstance(tensor, onnx.TensorProto)
    ]
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(each, _TYPES[str(value.dtype)], [None] * value.ndim)
            for each, value in values.items()
        ],
        [
            helper.make_tensor_value_info(each, kind, None)
            for each, kind in zip(found, _OUTPUTS.get(name, (FLOAT,) * outputs), strict=True)
        ],
        stored,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("lopa.cuda", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    driver.library.add_operators(options)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]), values


def objects_of_many_products(driver: StandInDriver) -> int:
    """Multiply more numbers of rows than plans are kept for. Return the largest number of cuBLASLt's objects."""
    driver.cublaslt.stand_in_lt_refuse(0)
    session, values = opened(driver, "RoundedProductFloat", E4M3, [codes(1200, 16), codes(16, 16)], 2)
    whole, most = session.run(["out0"], values)[0], 0
    for rows in [*range(1, 1200), 3]:
        found = session.run(["out0"], values | {"in0": values["in0"][:rows]})[0]
        np.testing.assert_array_equal(found, whole[:rows])
        most = max(most, driver.cublaslt.stand_in_lt_live())
    return most


def error_of(driver: StandInDriver, *call: Any) -> str:
    """Run an operator. Return "" or the error."""
    try:
        results(driver, *call)
    except Exception as error:
        return str(error)
    return ""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = archive_of_file(compiled_sample(Path(sys.argv[2])))
        cudart = StandInCudart()
        driver = StandInDriver(Path(folder), cudart)
        kernels = dict(archive.kernels)
        some = kernels["swiglu.fp32"]
        loads = {
            "no image": replace(some, image=b"nothing of that kind\0"),
            "no entry": replace(some, entry="another_kernel"),
            "large blocks": replace(some, shared_bytes=300 * 1024),
            "many arguments": replace(some, arguments=99),
        }
        found = {}
        for name, kernel in loads.items():
            found[name] = refused_load(driver, {**kernels, "swiglu.fp32": kernel})
        found["before loading"] = error_of(driver, *CALLS["product"])
        driver.set_capturing(True)
        found["in a capture"] = refused_load(driver, kernels)
        driver.set_capturing(False)
        driver.watch(kernels)
        driver.library.load(0, kernels)
        for name in ("e4m3 product", BY_KERNEL):  # cuBLASLt chooses before a capture
            driver.cublaslt.stand_in_lt_refuse(int(name == BY_KERNEL))
            operator, attributes, inputs, _ = RIGHT[name]
            results(driver, operator, attributes, inputs, 2)
        driver.set_capturing(True)  # forwards load nothing, so they can be captured
        found |= {name: error_of(driver, *call) for name, call in CALLS.items()}
        arrays = {}
        for name, (operator, attributes, inputs, count) in RIGHT.items():
            given = inputs + with_cache(cudart, attributes) if operator == "BranchAttention" else inputs
            outputs = results(driver, operator, attributes, given, _COUNTS.get(operator, count))
            arrays |= {f"{name} {index}": array for index, array in enumerate(outputs[:count])}
        assert driver.cublaslt.stand_in_lt_products() == 2
        assert driver.launches["rounded_product.fp32.e4m3.64"] == 2
        driver.set_capturing(False)
        found["objects of cuBLASLt"] = str(objects_of_many_products(driver))
        np.savez(sys.argv[1], **arrays)
        print(json.dumps(found | {"errors of references": driver.errors}))


def refused_load(driver: StandInDriver, kernels: Any) -> str:
    """Load kernels. Return "" or the error."""
    try:
        driver.library.load(0, kernels)
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
