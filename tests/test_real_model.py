"""The README's commands for Dream-7B, with its names, files and adapter at tiny sizes from a hub on loopback."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import httpx2
import msgspec
import pytest
from tools.checkpoint.likeness import LAYER_MATRICES, LIKENESSES
from tools.checkpoint.make import LORA_FOLDER, checkpoint_from_likeness
from tools.serving.server import run_server
from transformers import Qwen2Tokenizer

pytest.importorskip("huggingface_hub")
from tests.export.checkpoint.slow_tokenizer import CONFIG_IDS, IDS, SETTINGS, slow_tokenizer
from tests.hub_server import HubServer
from tests.test_readme import EXTRAS, REAL_MODEL, commands, run

CHAT_TEMPLATE = "{% for each in messages %}<|im_start|>{{ each.role }}\n{{ each.content }}<|im_end|>\n{% endfor %}"


def tiny_dream(folder: Path) -> Path:
    """Write a checkpoint and its adapter with the names and files of the published ones, and return the folder."""
    like = LIKENESSES["dream-7b"]
    sizes = {"hidden_size": 64, "intermediate_size": 96, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 16}
    dimensions = msgspec.structs.replace(like.dimensions, vocab_size=CONFIG_IDS["vocab_size"], **sizes)
    ids = {"mask": IDS["<|mask|>"], "eos": IDS["<|endoftext|>"], "bos": IDS["<|beginoftext|>"]}
    like = replace(like, dimensions=dimensions, **ids, adapted=LAYER_MATRICES[:4])
    checkpoint_from_likeness(like, folder, lora=True, max_shard_bytes=100_000)
    return slow_tokenizer(folder, chat_template=CHAT_TEMPLATE)


def test_dream_goes_from_the_hub_to_a_server(tmp_path: Path, kept_traces_of_processes: dict[str, str]) -> None:
    """Compare pip's command with the extra, and run the others. numpy replaces cuda:0: it computes bfloat16 as well."""
    install, export, serve = commands(REAL_MODEL)
    for requirement in EXTRAS["gpu"]:
        name, _, version = requirement.partition(";")[0].partition(">=")
        assert re.search(rf'"{name}(\[\S+\])?>={re.escape(version)}"', install)
    _, _, model, _, adapter, *_ = export.split()
    made = tiny_dream(tmp_path / "made")
    hub = HubServer(tmp_path / "hub-home")
    hub.state.commit_folder(adapter, made / LORA_FOLDER)
    shutil.rmtree(made / LORA_FOLDER)
    hub.state.commit_folder(model, made)
    try:
        result = run(export, tmp_path, **kept_traces_of_processes, **hub.environment)
    finally:
        hub.close()
    assert result.returncode == 0, result.stderr
    bundle, *options = serve.replace("cuda:0", "numpy").split()[2:]
    messages = [{"role": "user", "content": "What is a diffusion model?"}]
    with run_server(tmp_path / bundle, options) as server:
        body = {"model": "dream", "messages": messages, "max_tokens": 8}
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    tokenizer = Qwen2Tokenizer.from_pretrained(made, **SETTINGS)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert answer.json()["usage"]["prompt_tokens"] == len(ids)
