"""Checkpoints whose matrices are packed as GPTQ and AWQ publish them, written from the formats' descriptions."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from lopa.tiny import CHECKPOINT

_WORD = 32
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
LAYER = "model.layers."


def packed_words(numbers: np.ndarray, bits: int, *, awq: bool) -> np.ndarray:
    """Return int32 words with the numbers of each row side by side, [rows, columns * bits / 32]."""
    count = _WORD // bits
    places = _AWQ_PLACES if awq else range(count)
    words = np.zeros((numbers.shape[0], numbers.shape[1] // count), np.uint32)
    for position, place in enumerate(places):
        words |= numbers[:, position::count].astype(np.uint32) << np.uint32(bits * place)
    return words.view(np.int32)


def packed_checkpoint(
    folder: Path,
    method: str = "gptq",
    *,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    second_version: bool = False,
    mixed_groups: bool = False,
    seed: int = 0,
    **config: Any,
) -> dict[str, np.ndarray]:
    """Write the embedded checkpoint with random packed matrices in its layers.

    Return their values by name, float64 [outputs, inputs]. Scales are negative in half of the groups. A `group` of -1
    is a whole column.
    """
    shutil.copytree(CHECKPOINT, folder)
    rng, awq, values = np.random.default_rng(seed), method == "awq", dict[str, np.ndarray]()
    tensors = load_file(CHECKPOINT / "model.safetensors")
    for name in [name for name in tensors if name.startswith(LAYER) and tensors[name].ndim == 2]:
        outputs, inputs = tensors.pop(name).shape
        size = inputs if group == -1 else group
        numbers = rng.integers(0, 2**bits, (inputs, outputs))
        middle = 2 ** (bits - 1)
        zeros = (
            np.full((inputs // size, outputs), middle)
            if symmetric
            else rng.integers(1, 2**bits, (inputs // size, outputs))
        )
        scales = (rng.choice([-1, 1], zeros.shape) * rng.uniform(0.5, 1.5, zeros.shape) * 0.02).astype(np.float16)
        groups = np.arange(inputs) // size
        if mixed_groups:
            groups = rng.permutation(groups)
        module = name.removesuffix(".weight")
        stored_zeros = zeros - (0 if awq or second_version else 1)
        words = packed_words(numbers, bits, awq=True) if awq else packed_words(numbers.T, bits, awq=False).T
        tensors |= {
            f"{module}.qweight": np.ascontiguousarray(words),
            f"{module}.qzeros": packed_words(stored_zeros, bits, awq=awq),
            f"{module}.scales": scales,
        }
        if not awq:
            tensors[f"{module}.g_idx"] = groups.astype(np.int32)
        values[name] = ((numbers - zeros[groups]) * scales.astype(np.float64)[groups]).T
    save_file(tensors, folder / "model.safetensors")
    settings = {"bits": bits, "group_size": group, "quant_method": method}
    settings |= (
        {"version": "gemm", "zero_point": not symmetric} if awq else {"sym": symmetric, "desc_act": mixed_groups}
    )
    settings |= {"checkpoint_format": "gptq_v2"} if second_version else {}
    write_config(folder, {**settings, **config})
    return values


def write_config(folder: Path, settings: dict[str, Any]) -> None:
    """Write `settings` as the checkpoint's quantization_config."""
    config = json.loads((CHECKPOINT / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
