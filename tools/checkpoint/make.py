"""Make a checkpoint of a published architecture with seeded random weights, to test size, memory and time.

Usage: python -m tools.checkpoint.make --like dream-7b OUT [--layers N] [--lora] [--seed N]
    [--max-shard-bytes N]

OUT contains config.json, bfloat16 shards with their index, and a small tokenizer. With --lora it also contains the PEFT
adapter OUT/lora. Weights are generated during writing, so memory does not grow with the model. The generated text is
meaningless.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import click

from lopa.bench.progress import Progress, bytes_text
from lopa.export.progress import ProgressCallback, silent
from lopa.export.staging import staged_folder
from lopa.runtime.errors import BadInputError
from tools.checkpoint.likeness import (
    LIKENESSES,
    Likeness,
    config_from_likeness,
    generation_config_from_likeness,
    shallower,
)
from tools.checkpoint.shards import Shards, index_of_shards, shards_from_tensors, size_of_shard, write_shard
from tools.checkpoint.tensors import (
    ALPHA,
    RANK,
    lora_tensors_from_dimensions,
    tensors_from_dimensions,
)
from tools.checkpoint.tokenizer import tokenizer_config_from_likeness, tokenizer_from_likeness
from tools.report import exit_on_error

MAX_SHARD_BYTES = 4_000_000_000
LORA_FOLDER = "lora"


def checkpoint_from_likeness(
    likeness: Likeness,
    destination: Path,
    *,
    lora: bool = False,
    seed: int = 0,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: ProgressCallback = silent,
) -> None:
    """Create the folder `destination` atomically. Equal arguments give equal bytes.

    With `lora` it also contains the adapter, in the folder LORA_FOLDER. Raises BadInputError if `destination` exists,
    if the disk has too little space, or if writing fails.
    """
    sizes = likeness.dimensions
    shards = shards_from_tensors(
        tensors_from_dimensions(sizes, likeness.architecture, tied=likeness.tied), max_shard_bytes
    )
    adapter: Shards = {}
    if lora:
        adapter["adapter_model.safetensors"] = lora_tensors_from_dimensions(
            sizes, likeness.architecture, likeness.adapted, tied=likeness.tied
        )
    total = sum(size_of_shard(tensors) for files in (shards, adapter) for tensors in files.values())
    _check_destination(destination, total)
    done = 0

    def count_bytes(count: int) -> None:
        nonlocal done
        done += count
        progress("writing weights", done, total)

    with staged_folder(destination, overwrite=False) as folder:
        _write_json(folder / "config.json", config_from_likeness(likeness))
        generation = generation_config_from_likeness(likeness)
        if generation is not None:
            _write_json(folder / "generation_config.json", generation)
        _write_json(folder / "tokenizer.json", tokenizer_from_likeness(likeness))
        _write_json(folder / "tokenizer_config.json", tokenizer_config_from_likeness(likeness))
        _write_json(folder / "model.safetensors.index.json", index_of_shards(shards))
        if lora:
            (folder / LORA_FOLDER).mkdir()
            _write_json(folder / LORA_FOLDER / "adapter_config.json", _adapter_config(likeness))
        for place, files in ((folder, shards), (folder / LORA_FOLDER, adapter)):
            for name, tensors in files.items():
                write_shard(place / name, tensors, seed, count_bytes)


def _check_destination(destination: Path, total: int) -> None:
    if destination.exists():
        raise BadInputError(
            f"{destination} exists", expected="a new destination", remedy="choose another one, or remove it"
        )
    existing = next(parent for parent in destination.resolve().parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < total:
        raise BadInputError(
            f"{existing} has {free} bytes free",
            expected=f"{total} bytes for the weights",
            remedy="free some space, or choose another disk",
        )


def _adapter_config(likeness: Likeness) -> dict[str, Any]:
    """Return the content of PEFT's adapter_config.json. Other fields have PEFT's defaults."""
    names = (likeness.architecture.layer_names[f"{module}.weight"] for module in likeness.adapted)
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": "..",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": [name.removesuffix(".weight").rpartition(".")[2] for name in names],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--like", required=True, type=click.Choice(list(LIKENESSES)), help="Published model to imitate.")
@click.option("--layers", type=click.IntRange(min=1), help="Number of layers.  [default: all of the published model]")
@click.option("--lora", is_flag=True, help="Also create the adapter OUT/lora.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the weights.")
@click.option(
    "--max-shard-bytes",
    type=click.IntRange(min=1),
    default=MAX_SHARD_BYTES,
    show_default=True,
    help="Maximum bytes of a shard.",
)
def main(out: Path, like: str, layers: int | None, lora: bool, seed: int, max_shard_bytes: int) -> None:
    """Create the checkpoint folder OUT with random weights."""
    with exit_on_error(), Progress(bytes_text) as progress:
        likeness = LIKENESSES[like]
        if layers is not None:
            likeness = shallower(likeness, layers)
        checkpoint_from_likeness(
            likeness, out, lora=lora, seed=seed, max_shard_bytes=max_shard_bytes, progress=progress
        )


if __name__ == "__main__":
    main()
