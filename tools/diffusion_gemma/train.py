"""Train the three tiny checkpoints: `python -m tools.diffusion_gemma.train FOLDER [NAME ...]`, minutes each.

A random network accepts one token per step and never stops early, so recordings on it would prove nothing.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    DynamicCache,
    Gemma4VisionConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from tools.diffusion_gemma.texts import conversation

PAD, EOS, BOS, TURN_END = 0, 1, 2, 5
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn>{{ message['role'] }}\n{{ message['content'] }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
SLIDING, FULL = "sliding_attention", "full_attention"
NETWORKS: dict[str, dict[str, Any]] = {
    "canvas16": {
        "canvas": 16,
        "seed": 1,
        "text": {
            **{"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2},
            **{"head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "sliding_window": 16},
            **{"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32},
            "layer_types": [SLIDING, SLIDING, FULL],
        },
    },
    "canvas32": {
        "canvas": 32,
        "seed": 2,
        "text": {
            **{"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1},
            **{"head_dim": 32, "global_head_dim": 64, "num_global_key_value_heads": 2, "sliding_window": 24},
            **{"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
            "layer_types": [SLIDING, FULL, SLIDING, FULL],
        },
    },
    "canvas8": {
        "canvas": 8,
        "seed": 3,
        "text": {
            **{"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4},
            **{"head_dim": 32, "global_head_dim": 32, "sliding_window": 512},
            **{"num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32},
            "layer_types": [SLIDING, SLIDING, FULL],
        },
    },
}
"""Networks by name. canvas32 is saved with input keywords in place of per_layer_config."""
STEPS, BATCH = {"canvas16": 4000, "canvas32": 3000, "canvas8": 3000}, {"canvas16": 24, "canvas32": 16, "canvas8": 24}


def trained_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on the texts, with a chat template."""
    chance = random.Random(0)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [f"user\n{question}\nmodel\n{answer}" for question, answer in (conversation(chance) for _ in range(2000))]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")},
        chat_template=TEMPLATE,
    )


def network(name: str, vocab_size: int) -> DiffusionGemmaForBlockDiffusion:
    """Return the network with random weights, and scales that show if one is forgotten."""
    record = NETWORKS[name]
    torch.manual_seed(record["seed"])
    text = DiffusionGemmaTextConfig(
        **record["text"],
        vocab_size=vocab_size,
        num_hidden_layers=len(record["text"]["layer_types"]),
        max_position_embeddings=2048,
        eos_token_id=EOS,
    )
    vision = Gemma4VisionConfig(
        **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1},
        **{"num_key_value_heads": 1, "position_embedding_size": 4},
    )
    config = DiffusionGemmaConfig(
        text_config=text, vision_config=vision, canvas_length=record["canvas"], initializer_range=0.08
    )
    model = DiffusionGemmaForBlockDiffusion(config)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "norm" in key or key.endswith("scale"):
                tensor.normal_(1.0, 0.1)
        for part, scalar in ((model.model.encoder.language_model, 1.1), (model.model.decoder, 0.9)):
            for number, layer in enumerate(part.layers):
                layer.layer_scalar.fill_(scalar + 0.02 * number)
    return model


def batches(tokenizer: PreTrainedTokenizerFast, name: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return prefixes [n, P] and the canvases [n, canvas] behind them; all prefixes of a batch have one length."""
    canvas, size = NETWORKS[name]["canvas"], BATCH[name]
    chance, groups = random.Random(NETWORKS[name]["seed"]), dict[int, list[list[int]]]()
    for _ in range(20000):
        turns, ids = chance.randint(1, 3), list[int]()
        messages: list[dict[str, str]] = []
        for turn in range(turns):
            question, answer = conversation(chance)
            messages.append({"role": "user", "content": question})
            if turn < turns - 1:
                messages.append({"role": "model", "content": answer})
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        start = len(ids)
        ids += [*tokenizer.encode(answer, add_special_tokens=False), TURN_END]
        ids += [PAD] * (-(len(ids) - start) % canvas)
        for end in range(start + canvas, len(ids) + 1, canvas):
            groups.setdefault(end, []).append(ids[:end])
    lengths = [length for length, rows in groups.items() if len(rows) >= size]
    weights = [len(groups[length]) for length in lengths]
    while True:
        (length,) = chance.choices(lengths, weights)
        rows = torch.tensor(chance.sample(groups[length], size))
        yield rows[:, :-canvas], rows[:, -canvas:]


def train(name: str, tokenizer: PreTrainedTokenizerFast) -> DiffusionGemmaForBlockDiffusion:
    """Return the trained network: it restores canvases in which random tokens replace a random share."""
    vocabulary = len(tokenizer)
    model, steps = network(name, vocabulary), STEPS[name]
    wanted = [each for key, each in model.named_parameters() if "vision" not in key]
    optimizer = torch.optim.AdamW(wanted, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    for step, (prefix, target) in zip(range(steps), batches(tokenizer, name), strict=False):
        cache = model.model.encoder(prefix, past_key_values=DynamicCache(config=model.config.text_config))
        noisy = torch.rand(target.shape) < torch.rand(len(target), 1)
        ids = torch.where(noisy, torch.randint(vocabulary, target.shape), target)
        values = cache.past_key_values
        logits = None
        if step % 2:
            with torch.no_grad():
                logits = model(decoder_input_ids=ids, past_key_values=values).logits / 0.6
        logits = model(decoder_input_ids=ids, past_key_values=values, self_conditioning_logits=logits).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(wanted, 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            print(f"{name}: step {step}, loss {loss.item():.3f}", flush=True)
    return model.eval()


def save(model: DiffusionGemmaForBlockDiffusion, tokenizer: PreTrainedTokenizerFast, name: str, folder: Path) -> None:
    """Write a checkpoint with the files of the published one."""
    model.generation_config.update(
        **{"eos_token_id": [EOS, TURN_END], "pad_token_id": PAD, "bos_token_id": BOS, "max_denoising_steps": 48},
        **{"t_min": 0.4, "t_max": 0.8, "stability_threshold": 1, "confidence_threshold": 0.005},
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.1),
        max_new_tokens=4 * model.config.canvas_length,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if name == "canvas32":
        config = json.loads((folder / "config.json").read_text())
        text, given = config["text_config"], NETWORKS[name]["text"]
        del text["per_layer_config"]
        text.update({key: given[key] for key in ("global_head_dim", "num_global_key_value_heads")})
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[2:] or NETWORKS:
        used = trained_tokenizer()
        save(train(each, used), used, each, Path(sys.argv[1]) / each)
