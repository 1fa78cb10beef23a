"""Make a checkpoint of a published architecture with seeded random weights, for tests of size, memory and time.

Usage: python -m tools.checkpoint.make --like dream-7b OUT [--lora] [--seed N] [--max-shard-bytes N]

OUT holds config.json, bfloat16 shards with their index, and a small tokenizer; with --lora also the PEFT adapter
OUT/lora. Weights are made while they are written: memory does not grow with the model. The text that such a model
writes means nothing.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import click

from lopa.bench.pace import bytes_text
from lopa.cli.terminal.stages import StageProgress
from lopa.export.progress import Progress, silent
from lopa.export.staging import staged_folder
from lopa.runtime.errors import BadInputError
from tools.checkpoint.likeness import (
    LIKENESSES,
    Likeness,
    config_from_likeness,
    generation_config_from_likeness,
)
from tools.checkpoint.shards import Shards, index_of_shards, shards_from_tensors, size_of_shard, write_shard
from tools.checkpoint.tensors import (
    ALPHA,
    RANK,
    lora_tensors_from_dimensions,
    tensors_from_dimensions,
)
from tools.checkpoint.tokenizer import tokenizer_config_from_likeness, tokenizer_from_likeness
from tools.shown_errors import errors_shown

MAX_SHARD_BYTES = 4_000_000_000
LORA_FOLDER = "lora"


def checkpoint_from_likeness(
    likeness: Likeness,
    destination: Path,
    *,
    lora: bool = False,
    seed: int = 0,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: Progress = silent,
) -> None:
    """Make the new folder `destination`, whole or not at all; equal arguments give equal bytes.

    With `lora` it also holds the adapter, in the folder LORA_FOLDER. Raises BadInputError, before anything is written,
    if `destination` exists or the disk has too little room, and for whatever stops the writing.
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

    def wrote(count: int) -> None:
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
                write_shard(place / name, tensors, seed, wrote)


def _check_destination(destination: Path, total: int) -> None:
    if destination.exists():
        raise BadInputError(
            f"{destination} exists", expected="a destination that does not", remedy="choose another, or remove it"
        )
    existing = next(parent for parent in destination.resolve().parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < total:
        raise BadInputError(
            f"{existing} has {free} bytes free",
            expected=f"{total} bytes for the weights",
            remedy="free some space or choose another place",
        )


def _adapter_config(likeness: Likeness) -> dict[str, Any]:
    """What PEFT's adapter_config.json says; the rest has PEFT's default values."""
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
@click.option("--like", required=True, type=click.Choice(list(LIKENESSES)), help="The architecture.")
@click.option("--lora", is_flag=True, help="Make the adapter OUT/lora as well.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the weights.")
@click.option(
    "--max-shard-bytes", type=click.IntRange(min=1), default=MAX_SHARD_BYTES, show_default=True, help="Of one file."
)
def main(out: Path, like: str, lora: bool, seed: int, max_shard_bytes: int) -> None:
    """Make the checkpoint folder OUT with random weights."""
    with errors_shown(), StageProgress(bytes_text) as progress:
        checkpoint_from_likeness(
            LIKENESSES[like], out, lora=lora, seed=seed, max_shard_bytes=max_shard_bytes, progress=progress
        )


if __name__ == "__main__":
    main()
