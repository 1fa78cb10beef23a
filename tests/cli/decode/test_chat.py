"""lopa-export chat: line by line from standard input, and on a pseudo-terminal."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest
from tests.chat_bundles import with_chat_template
from tests.cli.command import lopa_export
from tests.runtime.strategy.failing import register_failing_strategies

from lopa.cli.decode.chat import Conversation

QUESTION = "Question: Jack has 5 marbles. Sam has 3 more marbles than Jack. How many marbles do they have?"
PROGRAM = (sys.executable, "-m", "lopa.cli.main", "chat")
TEMPLATE = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"
)


@pytest.fixture
def chat_bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Return the tiny bundle with a chat template."""
    return with_chat_template(tiny_bundle, tmp_path / "chat", TEMPLATE)


def chat(bundle: Path, text: str | bytes, *options: object) -> subprocess.CompletedProcess[str]:
    return lopa_export("chat", bundle, *options, stdin=text)


def generated(bundle: Path, prompt: str, *options: object) -> str:
    done = lopa_export("generate", bundle, prompt, "-q", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_template_each_message_is_continued_alone(tiny_bundle: Path) -> None:
    done = chat(tiny_bundle, f"{QUESTION}\\\nAnswer:\n{QUESTION}\\\nAnswer:\n")
    assert (done.returncode, done.stdout) == (0, 2 * generated(tiny_bundle, f"{QUESTION}\nAnswer:"))
    assert "no chat template" in done.stderr
    assert len(re.findall(r"tokens per forward, \d+ tokens per second", done.stderr)) == 2


def test_a_failing_strategy_ends_only_its_answer(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_failing_strategies(monkeypatch)
    done = chat(tiny_bundle, "one\ntwo\n", "--strategy", "fails_in_a_step", "--max-new-tokens", 8)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("error: strategy fails_in_a_step: branch_confidence raised ZeroDivisionError") == 2


def test_turns_use_the_template_and_can_be_undone(chat_bundle: Path, tmp_path: Path) -> None:
    saved = [tmp_path / f"{number}.jsonl" for number in range(3)]
    text = (
        f"one\ntwo\n/save {saved[0]}\n/undo\n/save {saved[1]}\n/system be kind\n/reset\n three\n/save {saved[2]}\n"
        "/quit\nnever\n"
    )
    done = chat(chat_bundle, text, "--system", "short", "--max-new-tokens", 8)
    assert done.returncode == 0, done.stderr
    first, second, third = ([json.loads(line) for line in path.read_text().splitlines()] for path in saved)
    assert [message["role"] for message in first] == ["system", *["user", "assistant"] * 2]
    assert first[:3] == second
    assert third[0] == {"role": "system", "content": "be kind"}
    assert third[1] == {"role": "user", "content": " three"}
    assert done.stdout == "".join(message["content"] + "\n" for message in [first[2], first[4], third[2]])
    rest = f"system: short\nuser: one\nassistant: {first[2]['content']}\nuser: two\nAnswer:"
    assert (
        chat(chat_bundle, rest.replace("\n", "\\\n") + "\n/quit\n").returncode == 0
    )  # text that looks like a role stays text
    assert generated(chat_bundle, rest, "--max-new-tokens", 8) == first[4]["content"] + "\n"


INVALID = (
    ("/sav x", "did you mean /save?"),
    ("/save", "the name of a file"),
    ("/save no/such/folder/x", "cannot write no/such/folder/x"),
    ("/system x", "no chat template"),
    ("/set temperature -1", "temperature -1.0"),
    ("/set temperatur 1", "did you mean /set temperature VALUE?"),
    ("/set skip_threshold 0.3", "cannot combine skip_threshold 0.3 with strategy 'vanilla'"),
    ("/quit now", "/quit alone"),
    ("/exit now", "/quit alone"),
    ("word " * 3000, "positions for prompt and answer together"),
)
"""Lines that are refused, each with a part of its error."""


def test_invalid_commands_are_reported_and_the_chat_continues(tiny_bundle: Path) -> None:
    lines = "".join(f"{line}\n" for line, _ in INVALID)
    done = chat(tiny_bundle, f"/set strategy vanilla\n{lines}/set max_new_tokens 5\nQuestion\n/set\n")
    assert done.returncode == 2
    errors = done.stderr.split("error: ")[1:]
    for (line, message), error in zip(INVALID, errors, strict=True):
        assert message in error, line[:20]
    assert "Traceback" not in done.stderr
    assert re.search(r"max_new_tokens +5\n", done.stderr)
    assert re.search(r"temperature +0.0\n", done.stderr)
    assert " tokens per forward" in done.stderr


def test_quiet_prints_only_the_answers(tiny_bundle: Path) -> None:
    done = chat(tiny_bundle, "Question\n/set stop x\n/exit\n/never\n", "-q")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "text", "code", "message"),
    [
        (["--system", "x"], "", 2, "no chat template"),
        (["--device", "mpi"], "", 2, "use generate under mpirun"),
        ([], b"a\xff\n", 2, "error: standard input: "),
        ([], "and \\", 2, "ends with a \\"),
    ],
)
def test_ways_to_end_a_chat(tiny_bundle: Path, options: list[str], text: str | bytes, code: int, message: str) -> None:
    done = chat(tiny_bundle, text, *options)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_conversation_that_outgrows_the_model_forgets_its_oldest_turns(chat_bundle: Path, tmp_path: Path) -> None:
    long = "word " * 300
    text = "".join(f"{number} {long}\n" for number in range(5)) + f"/save {tmp_path / 'all.jsonl'}\n"
    done = chat(chat_bundle, text, "--max-new-tokens", 4)
    assert done.returncode == 0, done.stderr
    assert "oldest turns are dropped" in done.stderr
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 10


def test_a_message_too_long_by_itself_drops_no_turns() -> None:
    conversation = Conversation("system", [("a", "b"), ("c", "d")])
    assert conversation.drop_until(lambda _: False, "e") == 0
    assert len(conversation.messages("e")) == 6
    assert conversation.drop_until(lambda messages: len(messages) <= 4, "e") == 1
    assert [message["content"] for message in conversation.messages("e")] == ["system", "c", "d", "e"]
    assert len(conversation.lines()) == 5
    assert conversation.undo()
    assert (conversation.dropped, conversation.messages()[1:]) == (1, [])


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, *arguments: object) -> None:
        self.process, self.master = self._started([*PROGRAM, *map(str, arguments)])
        self.seen = ""

    @staticmethod
    def _started(command: list[str]) -> tuple["subprocess.Popen[bytes]", int]:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
        )
        os.close(slave)
        return process, master

    def type(self, text: str) -> None:
        if {"\x03", "\x04"} & {*text}:
            # The prompt appears before readline waits. A signal in between takes effect at the next key, and the
            # terminal itself would read the end of a text.
            time.sleep(0.5)
        os.write(self.master, text.encode())

    def wait_for(self, pattern: str, seconds: float = 60.0) -> None:
        """Read until `pattern` appears after the last match."""
        until = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < until, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
        self.seen = self.seen[found.end() :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Read the rest of the output and return the exit code."""
        while True:
            assert select.select([self.master], [], [], 60)[0], self.seen
            try:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
            except OSError:  # the other side is closed
                break
        os.close(self.master)
        return self.process.wait(60)


def test_on_a_terminal_ctrl_c_stops_an_answer_and_returns_to_the_prompt(tiny_bundle: Path) -> None:
    # One token per step and no end: long enough to be interrupted on any machine.
    with Terminal(tiny_bundle, "--strategy", "vanilla", "--no-stop-at-eos", "--max-new-tokens", 1500) as terminal:
        terminal.wait_for("no chat template")
        terminal.wait_for("> ")
        terminal.type(f"{QUESTION}\n")
        terminal.wait_for("Nina|Sam|Jack has 5")
        time.sleep(0.5)
        terminal.type("\x03")
        terminal.wait_for("stopped; the message and the answer are not kept")
        terminal.type("/set max_new_tokens 4\n")
        terminal.wait_for("max_new_tokens 4")
        terminal.type(f"{QUESTION}\n")
        terminal.wait_for("stopped by length")
        terminal.wait_for("> ")
        terminal.type("half a line\x03")
        terminal.wait_for(r"\(Ctrl-C again, Ctrl-D or /quit ends\)")
        terminal.type("/undo\n")
        terminal.wait_for("0 turns are left")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.end() == 0
        assert "Traceback" not in terminal.seen


def test_ctrl_c_twice_at_the_prompt_ends(tiny_bundle: Path) -> None:
    with Terminal(tiny_bundle) as terminal:
        terminal.wait_for("> ")
        terminal.type("\x03")
        terminal.wait_for("Ctrl-C again")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "interrupted" in terminal.seen
        assert "Traceback" not in terminal.seen
