"""generate --shard: the shards of a file answer every line once, with the line numbers of the whole file."""

import json
from pathlib import Path

import pytest
from tests.cli.batch.test_batches import answers, jsonl
from tests.cli.batch.test_resume import stable
from tests.cli.command import PROMPT, lopa_export

from lopa.cli.batch.prompt_lines import Shard

OPTIONS = ("--max-new-tokens", 8, "--temperature", 0.7, "--seed", 5)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Write prompts with blank lines in a pattern, a bad line, and a last line without an end."""
    lines: list[str] = []
    for number in range(7):
        lines += [json.dumps({"prompt": PROMPT, "id": number}), ""]
    lines[4] = "{oops"
    path = jsonl(tmp_path / "in.jsonl", *lines)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    return path


@pytest.mark.parametrize("count", [3, 9])
def test_together_they_answer_every_line_once(count: int, tiny_bundle: Path, prompts: Path) -> None:
    whole = lopa_export("generate", tiny_bundle, "--prompts", prompts, *OPTIONS)
    found = []
    for number in range(1, count + 1):
        given = ("--prompts", "-") if number == 2 else ("--prompts", prompts)  # standard input can be sharded too
        shard = ("--shard", f"{number}/{count}")
        part = lopa_export("generate", tiny_bundle, *given, *shard, *OPTIONS, stdin=prompts.read_bytes())
        lines = answers(part.stdout)
        assert len(lines) == len(range(number - 1, 7, count))
        assert part.returncode == (2 if any("error" in line for line in lines) else 0)
        assert f"{len(lines)} prompt{'' if len(lines) == 1 else 's'}, " in part.stderr
        found += [stable(line) for line in lines]
    expected = [stable(line) for line in answers(whole.stdout)]
    assert sorted(found, key=lambda line: int(line["line"])) == expected
    assert [line["line"] for line in expected] == [1, 3, 5, 7, 9, 11, 13]


def test_a_shard_is_resumed_and_results_of_another_shard_are_rejected(
    tiny_bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    common = ("generate", tiny_bundle, "--prompts", prompts, "--output", output, *OPTIONS)
    assert lopa_export(*common, "--shard", "2/2").returncode == 0
    whole = output.read_text()
    assert [line["line"] for line in answers(whole)] == [3, 7, 11]
    output.write_text("".join(whole.splitlines(keepends=True)[:2])[:-5])
    cut = output.read_text()
    for other in (("--shard", "1/2"), ("--shard", "3/3"), ()):
        refused = lopa_export(*common, *other, "--resume")
        assert refused.returncode == 2
        assert "is not the result of" in refused.stderr
        assert output.read_text() == cut
    done = lopa_export(*common, "--shard", "2/2", "--resume")
    assert (done.returncode, "2 prompts (1 kept)" in done.stderr) == (0, True), done.stderr
    assert [stable(line) for line in answers(output.read_text())] == [stable(line) for line in answers(whole)]


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/2/3", "-1/4", " 1/4", "a/b", "", "1/1000001", "²/3"])
def test_an_invalid_shard_is_rejected(text: str, tiny_bundle: Path, prompts: Path) -> None:
    done = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--shard", text)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{text!r} is not a shard: expected K/N with K from 1 to N" in done.stderr


def test_how_many_prompts_a_shard_has() -> None:
    for total in range(20):
        for count in range(1, 8):
            assert sum(Shard(number, count).size(total) or 0 for number in range(1, count + 1)) == total
    assert Shard(2, 3).size(None) is None


def test_a_shard_needs_a_file_of_prompts(tiny_bundle: Path) -> None:
    done = lopa_export("generate", tiny_bundle, PROMPT, "--shard", "1/2")
    assert done.returncode == 2
    assert "--shard needs --prompts" in done.stderr
