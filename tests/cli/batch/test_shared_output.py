"""Two processes with one output: the second is rejected at once, and the first one's file is complete."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.batch.test_batches import answers, jsonl
from tests.cli.batch.test_resume import stable, started
from tests.cli.command import PROMPT, lopa_export
from tests.forked import ForkedProcess

LINES = [{"prompt": PROMPT, "id": number, "max_new_tokens": 8} for number in range(5)]
REFUSED = "another process is writing it"
Running = tuple[ForkedProcess, Callable[[], None]]


@contextmanager
def first_process(bundle: Path, output: Path, *more: object) -> Iterator[Running]:
    """Start a process that has opened its output and waits for prompts. Yield it with a function that sends them."""
    prompts = output.parent / "prompts.fifo"
    os.mkfifo(prompts)
    process = started(bundle, prompts, output, *more)
    with prompts.open("w") as file:  # blocks until the process opens the FIFO, after it has locked its output

        def answer() -> None:
            file.write("".join(json.dumps(line) + "\n" for line in LINES))
            file.close()

        yield process, answer
    process.end()
    prompts.unlink()


@pytest.fixture(scope="module")
def expected(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    done = lopa_export("generate", tiny_bundle, "--prompts", jsonl(tmp_path_factory.mktemp("in") / "in.jsonl", *LINES))
    return [stable(line) for line in answers(done.stdout)]


def test_the_second_process_is_rejected_and_the_file_is_complete(
    tiny_bundle: Path, expected: list[dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output, prompts = tmp_path / "out.jsonl", jsonl(tmp_path / "in.jsonl", *LINES)
    before = "".join(json.dumps(line) + "\n" for line in expected[:2])
    output.write_text(before)
    (tmp_path / "link").symlink_to("out.jsonl")
    (tmp_path / "hard").hardlink_to(output)
    trace = tmp_path / "trace.jsonl"
    with first_process(tiny_bundle, output, "--step-log", trace) as (process, answer):
        for name in (output, "out.jsonl", "link", "hard"):
            for more in ([], ["--resume"]):
                # There is no bundle, since nothing is opened before the output is rejected.
                second = lopa_export("generate", tmp_path / "none", "--prompts", prompts, "--output", name, *more)
                assert (second.returncode, second.stdout) == (2, "")
                assert f"cannot write {name}: {REFUSED}" in second.stderr
        for option, path in (("--step-log", output), ("--step-log", trace)):
            second = lopa_export("generate", tmp_path / "none", PROMPT, option, path)
            assert (second.returncode, second.stdout) == (2, "")
            assert f"cannot write {path}: {REFUSED}" in second.stderr
        assert output.read_text() in (before, "")  # the first process may empty the file
        answer()
        _, errors = process.communicate(60)
        assert process.returncode == 0, errors
    assert [stable(line) for line in answers(output.read_text())] == expected
    assert {line["type"] for line in answers(trace.read_text())} == {"header", "step"}
    again = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--output", "link", "--resume")
    assert (again.returncode, "5 kept" in again.stderr) == (0, True), again.stderr


def test_the_second_process_does_not_remove_the_first_ones_new_file(tiny_bundle: Path, tmp_path: Path) -> None:
    output, prompts = tmp_path / "out.jsonl", jsonl(tmp_path / "in.jsonl", *LINES)
    with first_process(tiny_bundle, output) as (process, answer):
        second = lopa_export("generate", tiny_bundle, "--prompts", prompts, "--output", output, "--resume")
        assert (second.returncode, REFUSED in second.stderr) == (2, True)
        assert output.read_bytes() == b""
        answer()
        process.communicate(60)
        assert process.returncode == 0
    assert len(answers(output.read_text())) == len(LINES)


def test_a_file_system_without_locks_gives_a_warning(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lopa.runtime.files.output_file.lock_file", lambda _: False)
    prompts, output = jsonl(tmp_path / "in.jsonl", *LINES[:1]), tmp_path / "out.jsonl"
    done = lopa_export("--quiet", "generate", tiny_bundle, "--prompts", prompts, "--output", output)
    assert done.returncode == 0
    assert done.stderr == (f"warning: this file system has no locks: make sure that no other process writes {output}\n")


def test_devices_and_fifos_need_no_lock(tiny_bundle: Path, tmp_path: Path) -> None:
    prompts = jsonl(tmp_path / "in.jsonl", *LINES[:1])
    with first_process(tiny_bundle, tmp_path / "out", "--step-log", "/dev/null") as (process, answer):
        for name in ("/dev/null", "/dev/stdout"):
            done = lopa_export(
                "generate", tiny_bundle, "--prompts", prompts, "--output", name, "--step-log", "/dev/null"
            )
            assert done.returncode == 0, done.stderr
        answer()
        process.communicate(60)
        assert process.returncode == 0
