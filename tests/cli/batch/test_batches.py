"""lopa-export generate with files: lines, output, failures, progress."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.chat_bundles import with_chat_template
from tests.cli.command import BROKEN_DEVICES, PROMPT, lopa_export
from tests.runtime.strategy.failing import FAILING, register_failing_strategies

GOOD = json.dumps({"prompt": PROMPT, "max_new_tokens": 16})
SHORT = ("--max-new-tokens", 16)


def jsonl(path: Path, *lines: str | bytes | dict[str, Any]) -> Path:
    encoded = (json.dumps(line) if isinstance(line, dict) else line for line in lines)
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in encoded))
    return path


def answers(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def chat_bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Return the tiny bundle with a chat template, which it lacks otherwise."""
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    return with_chat_template(tiny_bundle, tmp_path / "chat", template)


def test_a_line_may_have_an_id_and_options_of_its_own(tiny_bundle: Path, tmp_path: Path) -> None:
    prompts = jsonl(
        tmp_path / "in.jsonl",
        {"prompt": PROMPT},
        {"prompt": PROMPT, "id": "b", "strategy": "d2f", "max_new_tokens": 8},
        {"prompt": PROMPT, "id": 7, "temperature": 0.8, "seed": 5, "logprobs": True, "stop": ["="]},
        {"prompt": PROMPT, "id": 0.5, "max_new_tokens": None},
    )
    result = lopa_export("generate", tiny_bundle, "--prompts", prompts, *SHORT, "--no-prompt-ids", "--max-num-seqs", 3)
    assert result.returncode == 0, result.stderr
    first, short, drawn, last = answers(result.stdout)
    assert [line.get("id") for line in (first, short, drawn, last)] == [None, "b", 7, 0.5]
    assert (first["generated_positions"], short["generated_positions"]) == (16, 8)
    assert drawn["seed"] == 5
    assert len(drawn["logprobs"]) == len(drawn["token_ids"])
    assert "logprobs" not in first
    assert "prompt_ids" not in first
    assert first["token_ids"] == last["token_ids"]
    alone = lopa_export("generate", tiny_bundle, PROMPT, "--strategy", "d2f", "--max-new-tokens", 8)
    assert alone.stdout == short["text"] + "\n"


def test_a_failing_strategy_ends_only_its_line(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_failing_strategies(monkeypatch)
    lines = [{"prompt": PROMPT, "max_new_tokens": 8, "strategy": each} for each in ("lopa", *FAILING, "lopa")]
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8}
    openai = [
        {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {**body, "lopa": {"strategy": name}}}
        for name in FAILING
    ]
    prompts = jsonl(tmp_path / "in.jsonl", *lines, *openai, lines[0])
    result = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--max-num-seqs", 2)
    first, *failed, other, reply, other_reply, last = answers(result.stdout)
    assert first["token_ids"] == other["token_ids"] == last["token_ids"] != []
    for found, (name, stage) in zip(failed, FAILING.items(), strict=True):
        assert found["error"].startswith(f"strategy {name}: {stage} raised ZeroDivisionError")
    for found in (reply, other_reply):
        assert found["response"]["status_code"] == 500
        assert found["error"]["code"] == "server_error"
    assert "7 prompts, 4 errors, " in result.stderr
    assert result.returncode == 2


BAD = {
    "deep list": b"[" * 20000,
    "large number": b'{"prompt": "x", "max_new_tokens": ' + b"9" * 6000 + b"}",
    "not finite": b'{"prompt": "x", "temperature": NaN}',
    "half a character": b'{"prompt": "\\ud800"}',
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "no object": b'"text"',
    "no prompt": b'{"id": 1}',
    "a key twice": b'{"prompt": "x", "max_new_tokens": 3, "max_new_tokens": 4}',
    "two prompts": b'{"prompt": "x", "prompt_ids": [1]}',
    "unknown": b'{"prompt": "x", "max_tokens": 3}',
    "wrong ids": b'{"prompt_ids": [1, true]}',
    "wrong id": b'{"prompt": "x", "id": [1]}',
    "too long": b'{"prompt": "' + b"a" * (16 * 2**20) + b'"}',
    "no template": b'{"messages": [{"role": "user", "content": "x"}]}',
}


def test_every_kind_of_bad_line_is_an_error_of_that_line(tiny_bundle: Path, tmp_path: Path) -> None:
    prompts = jsonl(tmp_path / "in.jsonl", GOOD, *BAD.values(), GOOD)
    result = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--max-num-seqs", 2)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    found = answers(result.stdout)
    assert [line["line"] for line in found] == list(range(1, len(BAD) + 3))
    assert found[0]["token_ids"] == found[-1]["token_ids"]
    assert set(found[0]) == {
        "line", "request", "prompt_ids", "token_ids", "text", "steps", "tokens", "generated_positions",
        "tokens_per_forward", "stop_reason", "seconds", "seed", "branches",
    }  # fmt: skip
    for (why, _), line in zip(BAD.items(), found[1:-1], strict=True):
        assert set(line) - {"id"} == {"error", "line", "request"}, why
        assert len(line["error"]) < 2000, why
        assert f"error: {prompts} line {line['line']}: {line['error'][:40]}" in result.stderr, why
    assert f"{len(BAD) + 2} prompts, {len(BAD)} errors, " in result.stderr
    unknown = found[1 + list(BAD).index("unknown")]["error"]
    assert "'max_tokens'" in unknown
    assert "max_new_tokens" in unknown


def test_chats_in_lines_and_around_them(chat_bundle: Path, tmp_path: Path) -> None:
    talk = [
        {"role": "system", "content": "short"},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "and 1?"},
    ]
    prompts = jsonl(
        tmp_path / "in.jsonl",
        {"messages": talk},
        {"prompt": "2 + 2?"},
        {"prompt": "system: be short\nuser: 2 + 2?\nassistant:"},
        {"prompt_ids": [1, 5]},
        {"custom_id": "c", "url": "/v1/completions", "body": {"prompt": "2 + 2?", "max_tokens": 8}},
    )
    wrapped = lopa_export(
        "generate", chat_bundle, "--prompts", prompts, "--chat", "--system", "be short", "--max-new-tokens", 8
    )
    plain = lopa_export("generate", chat_bundle, "--prompts", prompts, "--max-new-tokens", 8)
    assert (wrapped.returncode, plain.returncode) == (2, 0), wrapped.stderr + plain.stderr
    in_chat, in_plain = answers(wrapped.stdout), answers(plain.stdout)
    assert in_chat[0]["prompt_ids"] == in_plain[0]["prompt_ids"]
    # The tiny bundle adds a beginning-of-text to plain text; a template writes its own, or none.
    assert in_chat[1]["prompt_ids"] == in_plain[2]["prompt_ids"][-len(in_chat[1]["prompt_ids"]) :]
    assert in_chat[1]["prompt_ids"] != in_plain[1]["prompt_ids"]
    assert "prompt_ids with --chat" in in_chat[3]["error"]
    assert in_chat[4]["response"]["body"]["usage"] == in_plain[4]["response"]["body"]["usage"], "a completion is none"
    one = lopa_export("generate", chat_bundle, "2 + 2?", "--chat", "--system", "be short", "--max-new-tokens", 8)
    assert (one.returncode, one.stdout) == (0, in_chat[1]["text"] + "\n"), one.stderr


def test_prompts_from_standard_input_or_a_fifo_are_answered_one_by_one(tiny_bundle: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = [sys.executable, "-m", "lopa.cli.main", "generate", str(tiny_bundle), "--prompts", str(fifo)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        with open(os.open(fifo, os.O_RDWR), "wb", buffering=0) as asking:  # noqa: PTH123 (does not wait for a reader)
            for number in (1, 2):
                asking.write(GOOD.encode() + b"\n")
                assert json.loads(process.stdout.readline())["line"] == number
        assert "2 prompts, 0 errors" in process.stderr.read()
    assert process.returncode == 0
    piped = lopa_export("generate", tiny_bundle, "--prompts", "-", stdin=f"\n{GOOD}\n\n{GOOD}")
    assert [line["line"] for line in answers(piped.stdout)] == [2, 4]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--output", "in.jsonl"),
        ("--step-log", "link"),
        ("--step-log", "hard"),
        ("--output", "new", "--step-log", "./new"),
        ("--output", "new", "--step-log", "new.link"),
    ],
)
def test_one_file_for_two_outputs_is_rejected(
    arguments: tuple[str, ...], tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = jsonl(tmp_path / "in.jsonl", GOOD)
    (tmp_path / "link").symlink_to("in.jsonl")
    (tmp_path / "hard").hardlink_to(prompts)
    (tmp_path / "new.link").symlink_to("new")
    monkeypatch.chdir(tmp_path)
    result = lopa_export("generate", tiny_bundle, "--prompts", "in.jsonl", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "are the same file" in result.stderr
    assert prompts.read_text() == f"{GOOD}\n"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("bad", ["bundle", "prompts", "option"])
def test_earlier_results_stay_until_the_first_new_one(bad: str, tiny_bundle: Path, tmp_path: Path) -> None:
    prompts, output = jsonl(tmp_path / "in.jsonl", GOOD), jsonl(tmp_path / "out.jsonl", "old")
    result = lopa_export(
        *("generate", tmp_path if bad == "bundle" else tiny_bundle),
        *("--prompts", tmp_path if bad == "prompts" else prompts),
        *("--output", output, "--temperature", -1 if bad == "option" else 0),
    )
    assert result.returncode == 2
    assert output.read_text() == "old\n"


def test_a_failing_device_keeps_the_earlier_results(tiny_bundle: Path, tmp_path: Path) -> None:
    """The third forward fails, so that the first prompt has a result and the second has none."""
    prompts, output = jsonl(tmp_path / "in.jsonl", *[GOOD] * 5), tmp_path / "out.jsonl"
    once = json.dumps({"prompt": PROMPT, "max_new_tokens": 1, "strategy": "vanilla"})
    prompts.write_text(f"{once}\n" + prompts.read_text())
    program = [sys.executable, "-c", BROKEN_DEVICES, "cpu", "generate", str(tiny_bundle), "--prompts", str(prompts)]
    done = subprocess.run([*program, "--output", str(output)], capture_output=True, text=True, check=False)
    assert done.returncode not in (0, 2), done.stderr
    assert [line["line"] for line in answers(output.read_text())] == [1]
    resumed = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--output", output, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert [line["line"] for line in answers(output.read_text())] == [1, 2, 3, 4, 5, 6]
