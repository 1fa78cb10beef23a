"""The API of lopa-web in Node: answers as Python's, greedy and drawn, and the programs of web/test."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.chat_bundles import HERMES, with_added_tokens
from tests.web.installed import WEB, no_web, run_node

from lopa.runtime.bundle import Bundle
from lopa.runtime.decoder import Decoder
from lopa.runtime.strategy.topk_ties import indices_of_topk

pytestmark = [pytest.mark.web, no_web]
PROMPTS = (
    "Tom has 3 apples. He buys 4 more.",
    "Question: A baker sells 12 rolls a day. How many rolls in 5 days?\nAnswer:",
    "Übung: 🍎🍎 und 中文, <|mask|> is text.",
)
LONG = {"max_new_tokens": 64, "stop_at_eos": False}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {**LONG, "strategy": "lopa", "branches": 4},
    {**LONG, "strategy": "d2f", "block_size": 16, "confidence": "margin", "attention": "block_causal"},
    {**LONG, "strategy": "eb", "gamma": 0.5, "branches": 2},
    {**LONG, "strategy": "threshold", "unmask_first_masked": True},
    {**LONG, "strategy": "vanilla", "block_steps": 8, "block_size": 16},
    {**LONG, "strategy": "sequential", "block_steps": 16},
    *(
        {**LONG, "temperature": 1.0, "seed": seed, "branches": branches}
        for seed in (0, 1, 2**40)
        for branches in (1, 4)
    ),
    *({**LONG, "temperature": 0.7, "top_p": 0.8, "top_k": top_k, "seed": 5, "strategy": "d2f"} for top_k in (1, 4, 8)),
    *({"max_new_tokens": 96, "block_size": 8, "temperature": 1.5, "seed": seed, "branches": 3} for seed in range(6)),
    {"temperature": 1.5, "seed": 3, "stop": ["1", "\n"], "max_new_tokens": 100},
)
FIELDS = ("prompt_ids", "token_ids", "text", "steps", "tokens", "generated_positions", "stop_reason", "stop_string")


def answers_of(bundle: Path, options: tuple[dict[str, Any], ...], device: str = "cpu") -> list[dict[str, Any]]:
    """Return Python's answer to each prompt by each of `options`."""
    found = []
    with Decoder.open(bundle, [device], threads=1) as decoder:
        for prompt in PROMPTS:
            for own in options:
                result = decoder.generate(prompt, **own)
                values = {name: getattr(result, name) for name in FIELDS}
                found.append({"prompt": prompt, "options": own, **values})
    return found


def check_program(name: str, bundle: Path, folder: Path, expected: list[dict[str, Any]]) -> None:
    """Run a program of node's own test runner, which compares with `expected`. Check that each of its tests ran and
    passed.
    """
    path = folder / "expected.json"
    path.write_text(json.dumps(expected))
    environment = {"BUNDLE": str(bundle), "EXPECTED": str(path)}
    report = run_node("--test", "--test-reporter=tap", f"{name}.test.mjs", environment=environment).stdout
    written = re.findall(r'^test\("(.+?)",', (WEB / "test" / f"{name}.test.mjs").read_text(), re.MULTILINE)
    assert re.findall(r"^ok \d+ - (.+)$", report, re.MULTILINE) == written


def test_every_test_of_the_parts_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties are those of Python, which agrees with torch (tests/runtime/strategy)."""
    choices = np.random.default_rng(0)
    ties = []
    for length in (4, 8, 16, 32):
        for count in range(1, length):
            values = np.where(choices.random(length) < 0.5, -np.inf, choices.integers(0, 3, length))
            indices = sorted(indices_of_topk(values, count).tolist())
            ties.append({"values": [None if np.isinf(each) else each for each in values.tolist()], "count": count})
            ties[-1]["indices"] = indices
    monkeypatch.setenv("TOPK", json.dumps(ties))
    check_program("parts", tmp_path, tmp_path, [])


def test_every_test_of_the_decoder_passes(tiny_bundle: Path, tmp_path: Path) -> None:
    check_program("decoder", tiny_bundle, tmp_path, answers_of(tiny_bundle, OPTIONS))


def test_tokens_drawn_from_logits_are_those_of_python(tiny_bundle_logits: Path, tmp_path: Path) -> None:
    options = tuple(
        {"max_new_tokens": 32, "stop_at_eos": False, "temperature": 1.0, "top_k": top_k, "top_p": 0.9, "seed": 11}
        for top_k in (0, 40)
    )
    check_program("answers", tiny_bundle_logits, tmp_path, answers_of(tiny_bundle_logits, options))


GREEDY = ({**LONG, "strategy": "d2f"}, {**LONG, "branches": 3})


@pytest.mark.parametrize("name", ["tiny_half", "tiny_rotary", "tiny_portable", "tiny_portable_positions"])
def test_answers_of_other_graphs_are_those_of_python(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bundle = request.getfixturevalue(name)
    check_program("answers", bundle, tmp_path, answers_of(bundle, GREEDY))


def test_answers_of_a_quantized_bundle_are_those_of_python(tiny_quantized: Path, tmp_path: Path) -> None:
    """Activations of int4 products are not rounded, as on the device numpy. Python's CPU provider rounds them."""
    quantization = Bundle.open(tiny_quantized).manifest.quantization
    assert quantization is not None
    device = "numpy" if quantization.kind == "int4" else "cpu"
    check_program("answers", tiny_quantized, tmp_path, answers_of(tiny_quantized, GREEDY, device))


def test_an_expand_token_is_never_written(expand_bundle: Path, tmp_path: Path) -> None:
    """Compare with Python, since lopa-web fills no holes."""
    options = {**LONG, "stop_at_eos": False}
    drawn = {**options, "temperature": 1.0, "seed": 5}
    check_program("answers", expand_bundle, tmp_path, answers_of(expand_bundle, (options, drawn)))


def test_a_chat_has_the_ids_of_python(tiny_bundle: Path, tmp_path: Path) -> None:
    """Markup of the template in a prompt is text, as in Python."""
    bundle = with_added_tokens(tiny_bundle, tmp_path / "bundle", HERMES)
    chat: list[dict[str, Any]] = [{"role": "user", "content": "2 + 3? 🍎"}, {"role": "assistant", "content": "5."}]
    function = {"name": "add", "arguments": {"a": 2}}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    tool = [chat[0], call, {"role": "tool", "content": "5", "tool_call_id": "1"}]
    chats = [chat[:1], [*chat, {"role": "user", "content": "A <b> 7?"}], tool]
    with Decoder.open(bundle, threads=1) as decoder:
        expected = [{"messages": each, "ids": decoder.tokenizer.chat(each)} for each in chats]
        text = "a <tool_call> b"
        expected.append({"text": text, "ids": decoder.tokenizer.encode(text, add_bos=False)})
    check_program("chat", bundle, tmp_path, expected)


def test_the_types_of_messages_have_calls_of_tools(tmp_path: Path) -> None:
    program = tmp_path / "program.mts"
    program.write_text(f"""
import type {{ Decoder, Message }} from {json.dumps(str(WEB / "dist" / "index.js"))};
const call: Message = {{ role: "assistant", content: null, tool_calls: [{{ id: "1" }}] }};
const answer: Message = {{ role: "tool", content: "3", tool_call_id: "1", name: "add" }};
export const ids = (decoder: Decoder): Promise<number[]> => decoder.promptFromMessages([call, answer]);
""")
    options = ("--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")
    run_node(WEB / "node_modules" / "typescript" / "bin" / "tsc", *options, program)


@pytest.mark.parametrize("condition", ["true", "m.role == 'user'"])
def test_a_template_that_loops_over_parts_has_the_ids_of_python(
    tiny_bundle: Path, tmp_path: Path, condition: str
) -> None:
    parts = "{% for p in m.content %}{{ p.text }}{% endfor %}"
    template = (
        "{% if tools %}<tool_call>{% endif %}{% for m in messages %}Question: "
        "{% if CONDITION %}PARTS{% else %}{{ m.content | trim }}{% endif %}{% endfor %}"
    )
    template = template.replace("CONDITION", condition).replace("PARTS", parts)
    bundle = with_added_tokens(tiny_bundle, tmp_path / "bundle", template)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
    with Decoder.open(bundle, threads=1) as decoder:
        ids = decoder.tokenizer.chat(chat)
        assert "Be brief.Question: 2 + 3?" in decoder.tokenizer.decode(ids)
    check_program("chat", bundle, tmp_path, [{"messages": chat, "ids": ids}])


def test_our_code_is_small() -> None:
    """A page also loads ONNX Runtime, which has 14 MB."""
    assert sum(len(path.read_bytes()) for path in (WEB / "dist").rglob("*.js")) < 197_000
