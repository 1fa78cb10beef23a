"""Train a toy on waiting lines (lopa.bench.evaluation.waiting_lines), for docs/evaluation.md.

Usage: python -m tools.checkpoint.learn_lines OUT [--steps N] [--seed N]

OUT is a checkpoint like Dream's, of 0.3 million parameters: `lopa-export onnx OUT -o BUNDLE`, then `lopa-export
questions` and `lopa-export bench BUNDLE --quality`. Equal arguments give equal weights on one machine.
"""

import json
import math
import random
from pathlib import Path

import click
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from lopa.bench.progress import Progress, progress_shown, silent
from lopa.export.staging import staged_folder
from lopa.runtime.bundle.manifest import ModelDimensions
from tools.checkpoint.likeness import config_from_likeness
from tools.checkpoint.line_lessons import ANSWER, LINES_TOY, Lesson, lesson, line_words, lines_tokenizer
from tools.checkpoint.tokenizer import tokenizer_config_from_likeness, tokenizer_from_likeness
from tools.shown_errors import errors_shown

_QUESTIONS = 48
_RATE, _LAST_RATE = 2e-3, 1e-5
_WARM_UP = 200
_BETAS, _DECAY, _LONGEST_GRADIENT = (0.9, 0.98), 0.01, 1.0
_SPREAD = 0.1
"""Of the first weights: larger than Qwen2's 0.02, for so narrow a model."""


def trained_model(steps: int, seed: int, progress: Progress = silent) -> tuple[Qwen2ForCausalLM, float]:
    """The model after `steps` lessons, and the mean loss of its last tenth, in nats for each masked token."""
    torch.manual_seed(seed)
    draw, tokenizer = random.Random(seed), lines_tokenizer()
    model = Qwen2ForCausalLM(_config(LINES_TOY.dimensions))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=_BETAS, weight_decay=_DECAY)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _rate(step, steps)
        loss = loss_of(model, lesson(tokenizer, _QUESTIONS, draw))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), _LONGEST_GRADIENT)
        optimizer.step()
        losses.append(loss.item())
        progress(step + 1)
    last = losses[-max(1, steps // 10) :]
    return model, sum(last) / len(last)


def loss_of(model: Qwen2ForCausalLM, given: Lesson) -> torch.Tensor:
    """Mean cross entropy of the masked tokens; the row before a position speaks of it."""
    hidden = model.model(
        input_ids=torch.from_numpy(given.ids),
        position_ids=torch.from_numpy(given.positions),
        attention_mask=_attention(torch.from_numpy(given.visible)),
        use_cache=False,
    ).last_hidden_state
    logits = model.lm_head(hidden[:, -ANSWER - 1 : -1])
    masked = torch.from_numpy(given.masked)
    return nn.functional.cross_entropy(logits[masked], torch.from_numpy(given.answers)[masked])


def _attention(visible: torch.Tensor) -> torch.Tensor:
    """What transformers adds to scores: [questions, 1, rows, rows]."""
    hidden = torch.finfo(torch.float32).min
    return torch.zeros(visible.shape).masked_fill(~visible, hidden)[:, None]


def _rate(step: int, steps: int) -> float:
    return _LAST_RATE + _RATE * min(1, step / _WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2


def _config(sizes: ModelDimensions) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.max_positions,
        rope_theta=sizes.rope_theta,
        rms_norm_eps=sizes.rms_norm_eps,
        tie_word_embeddings=False,
        initializer_range=_SPREAD,
        attn_implementation="sdpa",
    )


def write_checkpoint(model: Qwen2ForCausalLM, destination: Path) -> None:
    """Make the new folder `destination`, whole or not at all."""
    files = {
        "config.json": config_from_likeness(LINES_TOY),
        "tokenizer.json": tokenizer_from_likeness(LINES_TOY, line_words()),
        "tokenizer_config.json": tokenizer_config_from_likeness(LINES_TOY),
    }
    with staged_folder(destination, overwrite=False) as folder:
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(min=1), default=3000, show_default=True, help=f"Of {_QUESTIONS} lines.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and questions.")
def main(out: Path, steps: int, seed: int) -> None:
    """Train a checkpoint and write it to the folder OUT, on one thread."""
    torch.set_num_threads(1)
    with errors_shown():
        with progress_shown("lessons", steps) as progress:
            model, loss = trained_model(steps, seed, progress)
        write_checkpoint(model, out)
    click.echo(f"{out}: {sum(each.numel() for each in model.parameters())} parameters, loss {loss:.3f}")


if __name__ == "__main__":
    main()
