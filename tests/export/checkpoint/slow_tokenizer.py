"""A small tokenizer in the files of Dream's checkpoints: vocab.json, merges.txt, tokenizer_config.json.

The vocabulary is trained here on text that is not cut as Qwen2 cuts it. It therefore has merges for numbers and across
contractions, which an incorrect cut would use. Special tokens have ids above it, as in Dream's files.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel

TEXTS = (
    "def add(left, right):\n    return left + right\n\n\nfor i in range(10):\n\tprint(f'{i:03d}', add(i, 1))\n",
    "The answer is 12345, isn't it? We've 3 apples and they'll sell 2,000 more. The sum of the numbers is 42.\n",
    "12345 1234 123 12 20202020 SATURDAY'SALAD 'SATURN 'SALSA I'LLAMA 'sand 'same 'salad \n\n  \n \n;;\n\n",
    "今天天气很好，我们去公园吧。数字是一二三。 こんにちは世界。 안녕하세요 세계\r\n",
    "Größe, naïve café, Ünïcödé; Привет, мир! مرحبا بالعالم 🙂🙂🎉 👩‍👩‍👧 🇩🇪   \n\n\n  x  ",
)
ADDED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|beginoftext|>", "<|mask|>")
NOT_SPECIAL = ("<tool_call>", "</tool_call>")
BASE = 480
"""Number of tokens in vocab.json. The tokens in ADDED have the following ids."""
IDS = {content: BASE + i for i, content in enumerate(ADDED)}
CONFIG_IDS = {
    "vocab_size": 512,
    "bos_token_id": IDS["<|endoftext|>"],  # as in Dream's config.json, although Dream's tokenizer has another id
    "eos_token_id": IDS["<|endoftext|>"],
    "pad_token_id": IDS["<|endoftext|>"],
    "mask_token_id": IDS["<|mask|>"],
}
SETTINGS: dict[str, Any] = {
    "add_bos_token": False,
    "add_prefix_space": False,
    "added_tokens_decoder": {
        str(token_id): {
            "content": content,
            **dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False),
            "special": content not in NOT_SPECIAL,
        }
        for content, token_id in IDS.items()
    },
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"],
    "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
    "bos_token": "<|beginoftext|>",
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|endoftext|>",
    "errors": "replace",
    "mask_token": "<|mask|>",
    "model_max_length": 131072,
    "pad_token": "<|endoftext|>",
    "split_special_tokens": False,
    "tokenizer_class": "DreamTokenizer",
    "unk_token": None,
}


def slow_tokenizer(folder: Path, **changes: Any) -> Path:
    """Write the files to `folder`, with `changes` to tokenizer_config.json, and remove tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, merges = _trained()
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, **changes}))
    (folder / "tokenizer.json").unlink(missing_ok=True)
    # This file must never run: it would end the tests.
    (folder / "tokenization_dream.py").write_text("raise SystemExit('code of a checkpoint was run')\n")
    return folder


@cache
def _trained() -> tuple[dict[str, int], list[list[str]]]:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(vocab_size=BASE, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False)
    backend.train_from_iterator(TEXTS * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], model["merges"]
