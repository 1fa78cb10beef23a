"""A batch that is interrupted at any moment keeps its results, and --resume completes the same file."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.batch.test_batches import answers, jsonl
from tests.cli.command import PROMPT, lopa_export
from tests.forked import ForkedProcess

LINES = 24
CHANGES = ("seconds",)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write good lines, bad lines and blank lines."""
    lines: list[str | dict[str, Any]] = [
        {"prompt": PROMPT, "id": f"n{number}", "max_new_tokens": 8 + number % 5} for number in range(LINES)
    ]
    lines[3], lines[7], lines[LINES - 2] = "{oops", "", {"prompt": ""}
    return jsonl(tmp_path_factory.mktemp("resume") / "in.jsonl", *lines)


@pytest.fixture(scope="module")
def undisturbed(tiny_bundle: Path, prompts: Path) -> list[dict[str, Any]]:
    result = lopa_export("generate", tiny_bundle, "--prompts", prompts)
    assert result.returncode == 2
    return [stable(line) for line in answers(result.stdout)]


def stable(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in CHANGES}


def started(bundle: Path, prompts: Path, output: Path, *more: object) -> ForkedProcess:
    command = ("generate", bundle, "--prompts", prompts, "--output", output, *more)
    return ForkedProcess([*map(str, command)], os.environ)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_at_any_moment_and_resumed(
    number: signal.Signals, tiny_bundle: Path, prompts: Path, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    moments = random.Random(number)
    for again in range(2):
        cut = moments.randrange(1, LINES // 2) + again * LINES // 3
        process = started(tiny_bundle, prompts, output, "--resume", "--max-num-seqs", 1 + again)
        while process.poll() is None and (not output.exists() or output.read_bytes().count(b"\n") < cut):
            time.sleep(0.001)
        if process.returncode is None:
            process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        assert "Traceback" not in errors
        if process.returncode != 2:  # the run had not finished
            assert process.returncode in (-number, 128 + number)
        content = output.read_bytes()
        if number != signal.SIGKILL:
            assert content.endswith(b"\n")
        whole = answers(content[: content.rfind(b"\n") + 1].decode())
        assert [stable(line) for line in whole] == undisturbed[: len(whole)]
        assert len(whole) >= min(cut, len(undisturbed))
        assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]
    done = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--output", output, "--resume")
    assert done.returncode == 2, done.stderr
    assert [stable(line) for line in answers(output.read_text())] == undisturbed


def test_complete_lines_stay_and_a_truncated_line_is_removed(
    tiny_bundle: Path, prompts: Path, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    kept = [json.dumps({**answer, "seconds": -1.0}) for answer in undisturbed[:20]]
    output.write_text("\n".join([*kept, '{"line": 22, "requ']))
    done = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--output", output, "--resume")
    assert done.returncode == 2
    assert "3 prompts (20 kept), 2 errors, " in done.stderr
    found = answers(output.read_text())
    assert [stable(line) for line in found] == undisturbed
    assert [line.get("seconds") == -1.0 for line in found] == [number < 20 for number in range(len(found))]
    whole = output.read_bytes()
    again = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--output", output, "--resume")
    assert "0 prompts (23 kept), 2 errors, 0 tokens" in again.stderr
    assert (again.returncode, output.read_bytes()) == (2, whole)


def test_results_of_other_requests_are_rejected_and_unchanged(
    tiny_bundle: Path, tiny_bundle_logits: Path, undisturbed: list[dict[str, Any]], prompts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    mine = "".join(json.dumps(answer) + "\n" for answer in undisturbed[:6])
    shorter, other = tmp_path / "shorter.jsonl", tmp_path / "other.jsonl"
    lines = prompts.read_text().splitlines()
    shorter.write_text("\n".join(lines[:4]))
    other.write_text("\n".join([*lines[:4], lines[5], lines[4], *lines[6:]]))
    for content, arguments in (
        (mine, (tiny_bundle, "--prompts", other)),
        (mine, (tiny_bundle, "--prompts", shorter)),
        (mine, (tiny_bundle_logits, "--prompts", prompts)),
        (mine, (tiny_bundle, "--prompts", prompts, "--temperature", 0.5)),
        (mine, (tiny_bundle, "--prompts", prompts, "--chat")),
        ("not a result\n" + mine, (tiny_bundle, "--prompts", prompts)),
        ('{"some": "file"}\n', (tiny_bundle, "--prompts", prompts)),
    ):
        output.write_text(content + "half")
        done = lopa_export("generate", *arguments, "--output", output, "--resume")
        assert (done.returncode, done.stdout) == (2, "")
        assert "with the same prompts, bundle and options" in done.stderr
        assert output.read_text() == content + "half"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "/dev/null"], "not a regular file"),
        ([], "--resume needs"),
        (["--output", "new", "--step-log", "t"], "--resume needs"),
    ],
)
def test_resume_needs_a_file_of_results(arguments: list[str], message: str, tiny_bundle: Path, prompts: Path) -> None:
    done = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--resume", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_answers_in_the_shape_of_openai_are_resumed(tiny_bundle: Path, tmp_path: Path) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8}
    prompts = jsonl(
        tmp_path / "in.jsonl",
        *({"custom_id": str(n), "url": "/v1/completions", "body": {**body, "n": (n + 1) % 2}} for n in range(4)),
    )
    output = tmp_path / "out.jsonl"
    first = lopa_export("generate", tiny_bundle, "--prompts", prompts)
    whole = first.stdout.splitlines(keepends=True)
    output.write_text("".join(whole[:3])[:-10])
    done = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--output", output, "--resume")
    assert (done.returncode, output.read_text().splitlines(keepends=True)[:2]) == (2, whole[:2])
    assert [line["custom_id"] for line in answers(output.read_text())] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("changed", ["template", "default"])
def test_another_template_or_default_is_not_resumed(tiny_bundle: Path, tmp_path: Path, changed: str) -> None:
    """Both are in the bundle's manifest, next to the digests of its files."""
    bundle, output = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle")), tmp_path / "out.jsonl"
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }}")
    prompts = jsonl(tmp_path / "in.jsonl", *({"prompt": PROMPT, "max_new_tokens": 2} for _ in range(2)))
    given = ("generate", bundle, "--prompts", prompts, "--output", output, "--resume", "--chat")
    assert lopa_export("edit", bundle, "--chat-template", template).returncode == 0
    assert lopa_export(*given).returncode == 0
    assert lopa_export(*given).returncode == 0
    template.write_text("{{ messages[0].content }}!")
    other = ("--chat-template", template) if changed == "template" else ("--default", "strategy=vanilla")
    assert lopa_export("edit", bundle, *other).returncode == 0
    before = output.read_bytes()
    refused = lopa_export(*given)
    assert (refused.returncode, output.read_bytes()) == (2, before)
    assert "what to do: " in refused.stderr


def test_digests_are_long_enough_to_distinguish_lines(undisturbed: list[dict[str, Any]]) -> None:
    assert {len(each["request"]) for each in undisturbed} == {16}
