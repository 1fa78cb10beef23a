"""Ids, texts and chats of the exported tokenizer against transformers' AutoTokenizer of the checkpoint's folder."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.export.checkpoint.slow_tokenizer import CONFIG_IDS, slow_tokenizer
from tests.export.checkpoints import CONFIG, edit_config
from transformers import AutoTokenizer, PreTrainedConfig

from lopa.export.bundle_plan import BundleChoices, plan_from_checkpoint
from lopa.export.checkpoint.auto_tokenizer import auto_tokenizer, check_tokenizer_class, find_difference
from lopa.export.checkpoint.config import CheckpointConfig, config_from_checkpoint
from lopa.export.checkpoint.tokenizer_files import TokenizerFiles, tokenizer_files_from_checkpoint
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.runtime.text.tokenizer_text import tokenizer_from_text
from lopa.tiny import CHECKPOINT

REFERENCES = Path(__file__).parents[2] / "reference" / "families"
Edit = Callable[["Files"], None]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
NO_FLAGS: dict[str, Any] = dict.fromkeys(FLAGS, False)
NEW = ("<think>", "</think>", "<Tool>", " x ", "éa", "<|im_start|>")
CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "<think> a"},
    {"role": "user", "content": "B"},
]
TEMPLATE = (
    "{{ bos_token }}|{{ pad_token }}|{{ unk_token }}|{{ image_token }}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
)


class Files:
    """The toy's tokenizer files, to be edited, with `count` ids at the end that no token has."""

    def __init__(self, count: int = 0) -> None:
        self.json = json.loads((CHECKPOINT / "tokenizer.json").read_text(encoding="utf-8"))
        self.config = json.loads((CHECKPOINT / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.config["chat_template"] = TEMPLATE
        self.more: dict[str, Any] = {}
        model = self.json["model"]
        self.free = sorted(model["vocab"].values())[len(model["vocab"]) - count :]
        gone = {text for text, number in model["vocab"].items() if number in self.free}
        model["vocab"] = {text: number for text, number in model["vocab"].items() if text not in gone}
        model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & gone]

    def declare(self, number: int, content: str, **flags: bool) -> None:
        """Name a token in added_tokens_decoder of tokenizer_config.json."""
        entry = {"content": content, **NO_FLAGS, **flags}
        self.config.setdefault("added_tokens_decoder", {})[str(number)] = entry

    def unchanged(self) -> None:
        """Change nothing."""

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        config = {**CONFIG, "vocab_size": 1024}
        files = {"tokenizer.json": self.json, "tokenizer_config.json": self.config, "config.json": config, **self.more}
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
        return folder


def exported(folder: Path, config: CheckpointConfig | None = None) -> TokenizerFiles:
    """Return the files of an export, which compares them with AutoTokenizer."""
    files = tokenizer_files_from_checkpoint(folder, config or config_from_checkpoint(folder))
    check_tokenizer_class(folder, files.tokenizer)
    return files


def opened(files: TokenizerFiles, folder: Path) -> Tokenizer:
    backend = tokenizer_from_text(files.tokenizer, folder, expected="", remedy="")
    return Tokenizer(backend, json.loads(files.tokenizer_config), files.special_tokens.bos, source="x")


def _slow(folder: Path, **changes: Any) -> Path:
    """Write Dream's files, without a tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **CONFIG_IDS}))
    return slow_tokenizer(folder, **changes)


def differences(folder: Path) -> str | None:
    """Return how the export of `folder` differs from AutoTokenizer, or None."""
    files, theirs = exported(folder), AutoTokenizer.from_pretrained(folder, config=PreTrainedConfig())
    ours = opened(files, folder)
    if found := find_difference(tokenizer_from_text(files.tokenizer, folder, expected="", remedy=""), theirs):
        return found
    expected = theirs.apply_chat_template(CHAT, tokenize=False)
    if str(ours.chat_text(CHAT)) != expected:
        return f"chat {ours.chat_text(CHAT)!r} {expected!r}"
    text = "Hi <think> there"
    if files.adds_bos and ours.encode(text, add_bos=True, special_tokens=True) != theirs(text).input_ids:
        return f"prompt {theirs(text).input_ids}"
    return None if theirs.bos_token_id in (None, files.special_tokens.bos) else f"bos {files.special_tokens.bos}"


def _in_special_map(files: Files) -> None:
    names = ("bos_token", "eos_token", "pad_token", "mask_token")
    files.more["special_tokens_map.json"] = {name: files.config.pop(name) for name in names}


def _other_bos(files: Files) -> None:
    files.more["special_tokens_map.json"] = {"bos_token": {"content": "<|endoftext|>", "lstrip": True}}


def _unread_map(files: Files) -> None:
    files.declare(0, "<|endoftext|>", special=True)
    files.more["special_tokens_map.json"] = {"bos_token": "<|endoftext|>"}


@pytest.mark.parametrize(
    "edit",
    [
        Files.unchanged,
        _in_special_map,
        _other_bos,
        _unread_map,
    ],
)
def test_an_export_has_the_ids_and_texts_of_transformers(tmp_path: Path, edit: Edit) -> None:
    files = Files(3)
    edit(files)
    assert differences(files.write(tmp_path)) is None


def test_random_files(tmp_path: Path) -> None:
    """Check tokens and flags drawn for all files: equal to transformers, or refused by name."""
    refused: list[str] = []
    for seed in range(60):
        draw = random.Random(seed)
        files = _random_files(draw)
        folder = files.write(tmp_path / str(seed))
        try:
            assert differences(folder) is None, seed
        except BadInputError as error:
            refused.append(error.received)
    assert len(refused) < 30
    assert all(any(text in each for text in ("gives the", "has gaps", "special_tokens.")) for each in refused)


def _random_files(draw: random.Random) -> Files:
    files = Files(draw.randint(0, 4))
    vocabulary = files.json["model"]["vocab"]
    words = draw.sample([text for text in vocabulary if len(text) > 2], 3)
    new = list(zip(files.free, draw.sample(NEW, len(files.free)), strict=True))
    every = [*new, *((vocabulary[word], word) for word in words)]
    every += [(token["id"], token["content"]) for token in files.json["added_tokens"]]

    def flags() -> dict[str, bool]:
        return {flag: draw.random() < 0.35 for flag in FLAGS}

    for number, content in new[: draw.randint(0, len(new))]:
        files.json["added_tokens"].append({"id": number, "content": content, **flags()})
    files.json["normalizer"] = draw.choice([None, {"type": "NFC"}, {"type": "Lowercase"}])
    for number, content in every:
        if draw.random() < 0.3:
            files.declare(number, content, **flags())
    if draw.random() < 0.6:
        files.config.pop("added_tokens_decoder", None)
    files.more["added_tokens.json"] = {content: number for number, content in every if draw.random() < 0.4}
    roles: dict[str, Any] = {}
    for place in (files.config, roles):
        for name in ("bos_token", "eos_token", "unk_token", "image_token"):
            if draw.random() < 0.3:
                place[name] = draw.choice(every)[1]
        for name in ("additional_special_tokens", "extra_special_tokens"):
            if draw.random() < 0.2:
                place[name] = [content for _, content in every if draw.random() < 0.3]
    if draw.random() < 0.7:
        files.more["special_tokens_map.json"] = roles
    return files


@pytest.mark.parametrize("number", [1, 900, 1000])
def test_an_id_that_the_library_would_not_give(tmp_path: Path, number: int) -> None:
    """Check ids of other tokens, and one behind a gap."""
    files = Files(2)
    files.declare(number, "<think>")
    with pytest.raises(BadInputError, match=f"gives the (id {number} to|token '<think>' the ids 973 and {number})"):
        exported(files.write(tmp_path))


def _template(*pieces: str) -> dict[str, Any]:
    ids = {"<|beginoftext|>": 1, "<|endoftext|>": 0}
    part = [
        {"Sequence": {"id": "A", "type_id": 0}} if piece == "A" else {"SpecialToken": {"id": piece, "type_id": 0}}
        for piece in pieces
    ]
    tokens = {text: {"id": text, "ids": [number], "tokens": [text]} for text, number in ids.items()}
    pair = [*part, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": part, "pair": pair, "special_tokens": tokens}


def test_a_tokenizer_that_adds_its_bos(tmp_path: Path) -> None:
    files = Files()
    files.json["post_processor"] = _template("<|beginoftext|>", "A")
    assert differences(files.write(tmp_path / "one")) is None
    assert exported(tmp_path / "one").adds_bos
    del files.config["bos_token"]
    unnamed = files.write(tmp_path / "unnamed")
    edit_config(unnamed, bos_token_id=0)
    assert exported(unnamed).special_tokens.bos == 1
    files.config["bos_token"] = "<|mask|>"
    with pytest.raises(BadInputError, match=r"adds tokens to a text: .* bos_token is 2"):
        exported(files.write(tmp_path / "other"))
    for pieces in (("A", "<|endoftext|>"), ("<|beginoftext|>", "A", "<|endoftext|>")):
        files = Files()
        files.json["post_processor"] = _template(*pieces)
        with pytest.raises(BadInputError, match="adds tokens to a text"):
            exported(files.write(tmp_path / str(len(pieces))))


def test_a_vocabulary_with_add_bos_token(tmp_path: Path) -> None:
    """Check that without a tokenizer.json the entry decides, as in transformers."""
    folder = _slow(tmp_path, add_bos_token=True)
    files, theirs = exported(folder), auto_tokenizer(folder)
    assert files.adds_bos
    assert opened(files, folder).encode("Hi", add_bos=True) == theirs("Hi").input_ids
    assert not exported(_slow(folder)).adds_bos
    for name in ("add_eos_token", "add_prefix_space", "split_special_tokens"):
        with pytest.raises(BadInputError, match=f"{name} = True"):
            exported(_slow(folder, **{name: True}))


def test_the_code_of_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    """Check that Dream's own class is read as Qwen2's from a vocabulary, and as tokenizer.json where there is one."""
    folder = _slow(tmp_path)
    assert type(auto_tokenizer(folder)).__name__ == "Qwen2Tokenizer"
    files = Files()
    files.config |= {"tokenizer_class": "DreamTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_dream.X", None]}}
    assert type(auto_tokenizer(files.write(tmp_path))).__name__ == "TokenizersBackend"
    assert exported(tmp_path).tokenizer == (tmp_path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("place", "model_type", "name", "equal"),
    [
        ("config", "Dream", None, True),
        ("config", "Dream", "LlamaTokenizerFast", True),  # byte-level tokenizer.json: not Llama's own class
        ("config", "internlm2", "Qwen2Tokenizer", True),  # model types whose published class is known to be wrong
        ("tokenizer", "internlm3", "GPT2Tokenizer", True),
        ("config", "gpt_oss", "PreTrainedTokenizerFast", True),
        ("config", "llama", "TokenizersBackend", True),
        ("config", "qwen2", None, False),
        ("tokenizer", "qwen2", "TokenizersBackend", False),
        ("config", "Dream", "Qwen2Tokenizer", False),
        ("tokenizer", "Dream", "GPT2Tokenizer", False),
        ("tokenizer", "llama", "Qwen2Tokenizer", False),
        ("config", "canine", None, False),  # no tokenizer of the tokenizers library
        ("config", "albert", None, False),  # transformers fails
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*")
def test_the_class_that_all_files_choose(
    tmp_path: Path, place: str, model_type: str, name: str | None, equal: bool
) -> None:
    """Check class and model type in both files: the ids of AutoTokenizer of the folder as it is, or an error."""
    files = Files()
    del files.config["tokenizer_class"]
    folder = files.write(tmp_path)
    config = config_from_checkpoint(folder)
    path = folder / ("config.json" if place == "config" else "tokenizer_config.json")
    edit_config(folder, model_type=model_type)
    path.write_text(json.dumps(json.loads(path.read_text()) | ({"tokenizer_class": name} if name else {})))
    if not equal:
        with pytest.raises(BadInputError, match=r"by tokenizer_class or model_type\) (differs|fails)|cannot read the"):
            exported(folder, config)
        return
    made = tokenizer_from_text(exported(folder, config).tokenizer, folder, expected="", remedy="")
    theirs = AutoTokenizer.from_pretrained(folder)
    assert find_difference(made, theirs) is None
    for text in ("naïve e\u0301 It'RE 1", "  a\n\n\t12 ", "<|mask|> <|endoftext|>"):
        assert made.encode(text).ids == theirs(text).input_ids


def test_a_class_that_builds_the_same_tokenizer(tmp_path: Path) -> None:
    """Check Qwen2's class, which SDAR's and Fast-dLLM's checkpoints name, beside a tokenizer.json with its parts."""
    folder = _slow(tmp_path)
    made = exported(folder).tokenizer
    (folder / "tokenizer.json").write_bytes(made)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["auto_map"]
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "Qwen2Tokenizer"}))
    assert exported(folder).tokenizer == made


@pytest.mark.parametrize("family", ["sdar", "fast_dllm_v2", "llada"])
def test_the_bos_of_plain_prompts(tmp_path: Path, family: str) -> None:
    """Check that the tokenizer's own bos is used by every family, and that LLaDA's loop has one in any case."""
    checkpoint = shutil.copytree(REFERENCES / family, tmp_path / family, ignore=shutil.ignore_patterns("traces"))
    path = checkpoint / "tokenizer.json"
    for processor in (None, _template("<|beginoftext|>", "A")):
        path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": processor}))
        plan = plan_from_checkpoint(checkpoint, tmp_path / "bundle", BundleChoices())
        assert plan.decoding.add_bos == (family == "llada" or processor is not None)
