"""Cases from a checkpoint or an adapter, used as in an export up to the tracing. A few are exported completely."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.source import source_from_checkpoint
from lopa.export.weights.plan import tensor_records_from_plan
from lopa.export.weights.writer import write_weights
from tools.fuzz.case import Case, Material
from tools.fuzz.mutations import (
    TEXTS,
    changed_bytes,
    changed_document,
    number,
    put_in_place,
    short,
    text_of_json,
    value,
)

_SINGLE, _INDEX, _ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"
_TRACING_SECONDS = 60
_WHOLE = 0.01
"""Share of cases that are exported completely, since tracing is slow."""


def checkpoint_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Mutate a file of the checkpoint or of the adapter."""
    checkpoint = _copy(material.checkpoint, folder / "checkpoint")
    adapter = _copy(material.adapter, folder / "adapter")
    often = (_config, _config, _adapter_config, _adapter_config, _header, _header)
    words = rng.choice([*often, _index, _tokenizer, _slow_tokenizer, _slow_tokenizer, _links, _values])(
        rng, checkpoint, adapter
    )
    whole = rng.random() < _WHOLE

    def run() -> None:
        if whole:
            _export(checkpoint, adapter, folder / "bundles")
            return
        source = source_from_checkpoint(checkpoint, adapter)
        records = tensor_records_from_plan(source.planned, "float32")
        write_weights(folder / "weights", source.planned, records, source.stored, source.adapter, lambda _done: None)

    if whole:
        return Case(f"{words}; exported completely", run, processor_seconds=_TRACING_SECONDS)
    return Case(words, run)


def _export(checkpoint: Path, adapter: Path, place: Path) -> None:
    """Export a bundle. Raises RuntimeError if a failure leaves files behind."""
    place.mkdir()
    try:
        bundle_from_checkpoint(checkpoint, place / "bundle", lora=adapter)
    except BaseException:
        if list(place.iterdir()):
            raise RuntimeError(f"the failed export left {list(place.iterdir())}") from None
        raise


def _copy(source: Path, target: Path) -> Path:
    """Copy small files and link weights. Mutations replace linked files."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            (target / path.name).symlink_to(path)
        else:
            shutil.copy(path, target / path.name)
    return target


def _rewrite(rng: random.Random, path: Path, tree: Any = None) -> str:
    tree = json.loads(path.read_bytes()) if tree is None else tree
    text, words = changed_document(rng, json.dumps(tree).encode(), bytes_share=0.25)
    path.unlink(missing_ok=True)
    path.write_bytes(text)
    return f"{path.name}: {words}"


def _config(rng: random.Random, checkpoint: Path, _adapter: Path) -> str:
    path = checkpoint / "config.json"
    tree = json.loads(path.read_bytes())
    if rng.random() < 0.3:
        extra = ["head_dim", "rope_parameters", "layer_types", "rope_scaling", "use_sliding_window", "mask_token_id"]
        name = rng.choice(extra)
        any_value, any_rope = value(rng), {"rope_type": value(rng)}
        tree[name] = rng.choice([any_value, any_rope, {"rope_type": "default", "rope_theta": number(rng)}])
        path.write_bytes(text_of_json(rng, tree))
        return f"{name} = {short(tree[name])}"
    return _rewrite(rng, path, tree)


_PATTERNS = (
    *(".*", "(.*)*x", "(a|aa)*$", ".*" * 200 + "x", "(", "[", "(?i)x", "(?P<a>x)", "\\1", "q_proj|k_proj", "^q.*$"),
    *("(?=.*)*", "(?:" * 300 + ")" * 300, "x{99999}", "(x{9999}){9999}", "\\", "(?<=x)y", "a" * 5000),
    *("model\\.layers\\.\\d+.*", ""),
)


_ADAPTER_OPTIONS = (
    *("target_modules", "exclude_modules", "rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform"),
    *("r", "lora_alpha", "use_rslora", "layers_pattern"),
)


def _adapter_config(rng: random.Random, _checkpoint: Path, adapter: Path) -> str:
    path = adapter / "adapter_config.json"
    tree = json.loads(path.read_bytes())
    if rng.random() < 0.5:
        name = rng.choice(_ADAPTER_OPTIONS)
        patterns = {rng.choice(_PATTERNS): number(rng) for _ in range(rng.choice([1, 3, 50]))}
        values = [value(rng), number(rng), rng.choice(_PATTERNS), patterns, [rng.choice(_PATTERNS)]]
        many = {f"x{i}.*": 32 for i in range(rng.choice([10, 30_000]))}
        tree[name] = rng.choice([*values, many, ["lm_head"], ["q_proj", None]])
        path.write_bytes(text_of_json(rng, tree))
        return f"{name} = {short(tree[name])}"
    return _rewrite(rng, path, tree)


def _header_and_values(path: Path) -> tuple[bytes, bytes]:
    """Return header and values of a safetensors file, without the header's length."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return content[8 : 8 + length], content[8 + length :]


def _header(rng: random.Random, checkpoint: Path, adapter: Path) -> str:
    path = rng.choice([checkpoint / _SINGLE, adapter / _ADAPTER])
    header, values = _header_and_values(path)
    text, words = changed_document(rng, header, bytes_share=0.4)
    claimed = len(text) if rng.random() < 0.9 else rng.choice([0, 1, len(text) + 1, 2**24, 2**31, 2**63, 2**64 - 1])
    path.unlink()
    path.write_bytes(claimed.to_bytes(8, "little") + text + values)
    return f"{path.name}: {words}; header of {claimed}"


def _index(rng: random.Random, checkpoint: Path, _adapter: Path) -> str:
    path = checkpoint / _INDEX
    names = json.loads(_header_and_values(checkpoint / _SINGLE)[0])
    (checkpoint / "one.safetensors").symlink_to((checkpoint / _SINGLE).resolve())
    tree: Any = {"metadata": {}, "weight_map": {name: "one.safetensors" for name in names if name != "__metadata__"}}
    if rng.random() < 0.5:
        os.mkfifo(checkpoint / "fifo")
        (checkpoint / "loop").symlink_to("loop")
        shard = rng.choice([*TEXTS, "fifo", "loop", "config.json", "one.safetensors/", "./one.safetensors"])
        for name in rng.sample(sorted(tree["weight_map"]), rng.choice([1, 10, len(tree["weight_map"])])):
            tree["weight_map"][name] = shard
        path.write_bytes(text_of_json(rng, tree))
        return f"index names {short(shard)}"
    return _rewrite(rng, path, tree)


def _tokenizer(rng: random.Random, checkpoint: Path, _adapter: Path) -> str:
    name = rng.choice(["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
    if name == "chat_template.jinja":
        data, words = changed_bytes(rng, b"{% for m in messages %}{{ m.content }}{% endfor %}")
        (checkpoint / name).write_bytes(data)
        return f"{name}: {words}"
    return _rewrite(rng, checkpoint / name)


def _slow_tokenizer(rng: random.Random, checkpoint: Path, _adapter: Path) -> str:
    """Write vocab.json and merges.txt in place of tokenizer.json, with bytes and a few merges only."""
    from tokenizers.pre_tokenizers import ByteLevel

    (checkpoint / "tokenizer.json").unlink()
    specials = ["<|endoftext|>", "<|beginoftext|>", "<|mask|>"]
    signs = sorted(ByteLevel.alphabet())
    merges = [(a, b) for a in signs[:10] for b in signs[:4]]
    vocabulary = {text: i for i, text in enumerate([*specials, *signs, *(a + b for a, b in merges)])}
    names = dict(zip(("eos_token", "pad_token", "bos_token", "mask_token"), (specials[0], *specials), strict=True))
    added = {str(i): {"content": text, "special": True} for i, text in enumerate(specials)}
    trees: dict[str, dict[str, Any]] = {
        "vocab.json": vocabulary,
        "tokenizer_config.json": {"tokenizer_class": "DreamTokenizer", **names, "added_tokens_decoder": added},
        "added_tokens.json": {text: i for i, text in enumerate(specials)},
        "special_tokens_map.json": {"mask_token": specials[2], "eos_token": {"content": specials[0]}},
    }
    files = {name: json.dumps(tree).encode() for name, tree in trees.items()}
    files["merges.txt"] = ("#version: 0.2\n" + "\n".join(f"{a} {b}" for a, b in merges) + "\n").encode()
    for name, data in files.items():
        (checkpoint / name).write_bytes(data)
    name = rng.choice(sorted(files))
    if name == "merges.txt" or rng.random() < 0.3:
        data, words = changed_bytes(rng, files[name])
        (checkpoint / name).write_bytes(data)
        return f"{name}: {words}"
    return _rewrite(rng, checkpoint / name)


def _links(rng: random.Random, checkpoint: Path, adapter: Path) -> str:
    path = rng.choice([*sorted(checkpoint.iterdir()), *sorted(adapter.iterdir())])
    path.unlink()
    kind = rng.choice(["loop", "folder", "fifo", "missing", "device", "dangling", "empty"])
    put_in_place(path, kind)
    return f"{path.name}: {kind}"


def _values(rng: random.Random, checkpoint: Path, adapter: Path) -> str:
    path = rng.choice([checkpoint / _SINGLE, adapter / _ADAPTER])
    content = bytearray(path.read_bytes())
    path.unlink()
    at = 8 + int.from_bytes(content[:8], "little") + rng.randrange(1000) * 4
    piece = rng.choice([b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f", rng.randbytes(4)])
    content[at : at + 4] = piece
    path.write_bytes(content if rng.random() < 0.8 else content[: rng.randrange(len(content))])
    return f"{path.name}: {piece!r} at {at}"
