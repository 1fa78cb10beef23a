"""Train a toy that fills a missing step of an arithmetic solution, from the embedded checkpoint's weights.

Usage: python -m tools.infill.train OUT [--steps N] [--seed N] [--start CHECKPOINT] [--threads N]

OUT is a checkpoint folder: `lopa-export onnx OUT -o BUNDLE`, then `python -m tools.measure infill BUNDLE`. Equal
arguments give equal weights on one machine.
"""

import math
import random
import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

from lopa import tiny
from lopa.bench.progress import BenchProgress, show_progress, silent
from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.export.staging import staged_folder
from lopa.export.verify.reference_model import empty_network, load_weights
from tools.cli_errors import exit_on_error
from tools.infill.batches import Batch, Source, batch_of, source_from_function, source_from_problem
from tools.infill.functions import functions
from tools.infill.problems import problems

BATCH_SIZE = 16
_FUNCTION_SHARE = 0.2
_RATE, _LAST_RATE, _WARM_UP = 1e-3, 1e-5, 30
_BETAS, _DECAY, _MAX_GRADIENT = (0.9, 0.98), 0.01, 1.0
_WEIGHTS = "model.safetensors"


def trained_network(
    steps: int, seed: int, *, batch_size: int, start: Path = tiny.CHECKPOINT, progress: BenchProgress = silent
) -> tuple[Any, list[float]]:
    """Return the network of `start` after `steps` batches, and the loss of each batch, in nats per masked token."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokenizer = Tokenizer.from_file(str(tiny.CHECKPOINT / "tokenizer.json"))
    network = network_from_checkpoint(start)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, betas=_BETAS, weight_decay=_DECAY)
    texts = training_texts(rng)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, steps)
        loss = loss_of(network, batch_of(islice(texts, batch_size), tokenizer, rng))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), _MAX_GRADIENT)
        optimizer.step()
        losses.append(loss.item())
        progress(step + 1)
    return network, losses


def training_texts(rng: random.Random) -> Iterator[Source]:
    """Yield texts without end: problems that are not held out, and functions."""
    code = functions(rng.getrandbits(64))
    for problem in problems(rng.getrandbits(64)):
        if rng.random() < _FUNCTION_SHARE:
            yield source_from_function(next(code), rng)
        elif not problem.is_held_out:
            yield source_from_problem(problem)


def loss_of(network: Any, batch: Batch) -> torch.Tensor:
    """Return the mean cross entropy of the masked tokens. The row before a position predicts it."""
    is_text, is_masked = torch.from_numpy(batch.is_text), torch.from_numpy(batch.is_masked)
    # Every row attends to the whole text, but not to padding.
    mask = torch.zeros(is_text.shape).masked_fill(~is_text, torch.finfo(torch.float32).min)
    length = is_text.shape[1]
    hidden = network.model(
        input_ids=torch.from_numpy(batch.ids),
        attention_mask=mask[:, None, None].expand(-1, 1, length, -1),
        use_cache=False,
    ).last_hidden_state
    logits = network.lm_head(hidden[:, :-1][is_masked[:, 1:]])
    return nn.functional.cross_entropy(logits, torch.from_numpy(batch.labels)[is_masked])


def network_from_checkpoint(checkpoint: Path) -> Any:
    """Return the network of the embedded checkpoint, or of one that this program wrote."""
    config = config_from_checkpoint(checkpoint)
    network = empty_network(config.dimensions, "dream", checkpoint, attention="sdpa")
    # The network has the checkpoint's names, because Dream's layers are Qwen2's.
    load_weights(network, load_file(checkpoint / _WEIGHTS), source=checkpoint)
    return network


def _rate(step: int, steps: int) -> float:
    """Return the learning rate: linear warm-up, then a half cosine."""
    return _LAST_RATE + _RATE * min(1, (step + 1) / _WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2


def write_checkpoint(network: Any, destination: Path) -> None:
    """Write the new folder `destination`, which has the embedded checkpoint's files with other weights."""
    with staged_folder(destination, overwrite=False) as folder:
        for path in tiny.CHECKPOINT.iterdir():
            if path.name != _WEIGHTS:
                shutil.copyfile(path, folder / path.name)
        weights = {name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()}
        save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(min=1), default=600, show_default=True, help="Number of batches.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of problems and masks.")
@click.option(
    "--start",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Checkpoint of an earlier run to continue from.  [default: the embedded checkpoint]",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of torch.")
def main(out: Path, steps: int, seed: int, start: Path | None, threads: int) -> None:
    """Train a checkpoint and write it to the new folder OUT."""
    torch.set_num_threads(threads)
    started = time.monotonic()
    with exit_on_error():
        with show_progress("batches", steps) as progress:
            network, losses = trained_network(
                steps, seed, batch_size=BATCH_SIZE, start=start or tiny.CHECKPOINT, progress=progress
            )
        write_checkpoint(network, out)
    last = losses[-max(1, steps // 10) :]
    seconds = time.monotonic() - started
    click.echo(
        f"{out}: {steps} batches in {seconds:.0f} s, loss {losses[0]:.3f}, at the end {sum(last) / len(last):.3f}"
    )


if __name__ == "__main__":
    main()
