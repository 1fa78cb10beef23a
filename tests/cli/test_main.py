"""Exit codes, streams and signals of lopa-export, in real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.cli.command import lopa_export

from lopa.cli.program.standard_streams import ESCAPED, open_streams
from lopa.runtime.bundle import Bundle

PROMPT = "Question: 2 + 3?\nAnswer:"
MODULE = (sys.executable, "-m", "lopa.cli.main")
SCRIPT = (str(Path(sys.executable).with_name("lopa-export")),)


def ended(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        text=True,
        check=False,
        **{"stderr": subprocess.PIPE, **options},  # type: ignore[call-overload]
    )


def in_shell(line: str, program: tuple[str, ...], bundle: Path) -> subprocess.CompletedProcess[str]:
    """Run `line` in bash, where RUN is lopa-export, $B the bundle and $Q a prompt."""
    run = " ".join(program)
    environment = {**os.environ, "B": str(bundle), "Q": PROMPT, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", line.replace("RUN", run)], text=True, check=False, capture_output=True, env=environment
    )


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (SCRIPT, 'RUN generate $B "$Q" > /dev/full'),
        (MODULE, "RUN inspect $B --json > /dev/full"),
        (SCRIPT, "RUN --help > /dev/full"),
    ],
)
def test_a_full_standard_output_is_one_message(program: tuple[str, ...], line: str, tiny_bundle: Path) -> None:
    done = in_shell(line, program, tiny_bundle)
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 1
    assert "No space left on device" in done.stderr
    assert not re.search("Traceback|Exception", done.stderr)


def test_a_reader_that_closes_the_pipe(tiny_bundle: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "in.jsonl"
    prompts.write_text((json.dumps({"prompt": PROMPT}) + "\n") * 8)
    many = f"RUN generate $B --prompts {prompts} --max-new-tokens 4"
    for line in (
        f"{many} 2>&1 | head -1; exit ${{PIPESTATUS[0]}}",
        "RUN --help | true; exit ${PIPESTATUS[0]}",
        'RUN generate $B "$Q" --drafts 2>&1 | head -1; exit ${PIPESTATUS[0]}',
    ):
        done = in_shell(line, SCRIPT, tiny_bundle)
        assert done.returncode == 141, line
        assert not re.search("Traceback|Exception|error: ", done.stderr), line


@pytest.mark.parametrize(
    ("redirect", "code"),
    [("<&-", 0), (">&-", 2), ("2>&-", 0), ("> /dev/null 2> /dev/full", 2)],
)
def test_closed_streams(redirect: str, code: int, tiny_bundle: Path) -> None:
    done = in_shell(f'RUN generate $B "$Q" --max-new-tokens 4 {redirect}', SCRIPT, tiny_bundle)
    assert done.returncode == code
    assert not re.search("Traceback|Exception", done.stderr)


def test_a_file_never_replaces_a_closed_stream(tiny_bundle: Path, tmp_path: Path) -> None:
    prompts, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPT}) + "\n{oops\n")
    done = in_shell(f"RUN generate $B --prompts {prompts} --output {output} <&- >&- 2>&-", SCRIPT, tiny_bundle)
    assert done.returncode == 2
    assert [set(json.loads(line)) & {"text", "error"} for line in output.read_text().splitlines()] == [
        {"text"},
        {"error"},
    ]


def test_an_encoding_without_the_characters_gets_escapes(tiny_bundle: Path, tmp_path: Path) -> None:
    setting = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    options = {"env": {**os.environ, **setting}, "encoding": "latin-1", "stdout": subprocess.PIPE}
    refused = ended(*SCRIPT, "inspect", tmp_path / "😀", **options)
    assert refused.returncode == 2
    assert re.search(r"\\[uU][0-9a-f]{4}", refused.stderr)
    assert "Traceback" not in refused.stderr
    drafts = ended(*SCRIPT, "generate", tiny_bundle, PROMPT, "--drafts", **options)
    assert (drafts.returncode, "\\u2591" in drafts.stderr) == (0, True)


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (OSError(28, "No space left on device", "/data/x"), 2, "error: /data/x: No space left on device\n"),
        (MemoryError(), 2, "error: memory ran out\n"),
        (RecursionError("deep\nand deeper"), 70, "error: unexpected RecursionError: deep and deeper\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_every_exit_code_has_one_message(
    raised: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bundle, "open", Mock(side_effect=raised))
    done = lopa_export("inspect", "x")
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if code in (2, 70):
        assert "\n  what to do: " in done.stderr


@pytest.mark.parametrize("arguments", [["-v", "inspect", "x"], ["inspect", "x", "--verbose"]], ids=str)
def test_verbose_shows_the_traceback_of_a_bug(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bundle, "open", Mock(side_effect=KeyError("x")))
    done = lopa_export(*arguments)
    assert done.returncode == 70
    assert "KeyError: 'x'" in done.stderr
    assert "Traceback" in done.stderr


def interrupted_after(seconds: float, number: int, *arguments: object) -> tuple[int, str]:
    """Return exit code and errors of a process that gets signal `number` some seconds after the interpreter is up.

    An earlier signal would not reach lopa-export's code."""
    up, ready = os.pipe()
    start = f"import os; from lopa.cli.main import main; os.write({ready}, b'.'); os.close({ready}); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", start, *map(str, arguments)],
        pass_fds=[ready],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(ready)
    os.read(up, 1)
    os.close(up)
    time.sleep(seconds)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.mark.parametrize(
    ("number", "code", "message", "moments"),
    [
        (signal.SIGINT, 130, "interrupted\n", (0.05, 0.2, 0.5)),
        (signal.SIGTERM, 143, "terminated\n", (0.35,)),
    ],
    ids=["interrupted", "terminated"],
)
def test_a_signal_at_any_moment_ends_cleanly(
    tiny_bundle: Path, tmp_path: Path, number: int, code: int, message: str, moments: tuple[float, ...]
) -> None:
    """The signals arrive while modules are imported, while the bundle is opened, and while it decodes."""
    prompts = tmp_path / "in.jsonl"
    prompts.write_text((json.dumps({"prompt": PROMPT}) + "\n") * 5000)
    for seconds in moments:
        found = interrupted_after(seconds, number, "generate", tiny_bundle, "--prompts", prompts, "-q")
        assert found == (code, message), seconds


def test_main_restores_signal_handlers_for_a_calling_program() -> None:
    code = (
        "import signal, sys, threading\nfrom lopa.cli.main import main\n"
        "def run():\n    try: main(['inspect', 'nowhere'])\n    except SystemExit as end: ends.append(end.code)\n"
        "ends, before = [], [signal.getsignal(n) for n in (2, 15)]\nrun()\n"
        "thread = threading.Thread(target=run)\nthread.start()\nthread.join()\n"
        "assert (ends, before) == ([2, 2], [signal.getsignal(n) for n in (2, 15)])"
    )
    done = ended(sys.executable, "-c", code)
    assert (done.returncode, done.stderr.count("error: ")) == (0, 2), done.stderr


def test_an_ignored_signal_stays_ignored(tiny_bundle: Path) -> None:
    """Nohup ignores signals, and so does a shell for processes that it starts in the background."""
    number = signal.SIGINT
    line = f"trap '' {int(number)}; exec RUN generate $B \"$Q\""
    process = subprocess.Popen(
        ["bash", "-c", line.replace("RUN", SCRIPT[0])],
        env={**os.environ, "B": str(tiny_bundle), "Q": PROMPT},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(0.5)
    process.send_signal(number)
    assert process.communicate(timeout=60)[0]
    assert process.returncode == 0


def test_quiet_prints_errors_only(tiny_bundle: Path, tmp_path: Path) -> None:
    done = lopa_export("-q", "inspect", tiny_bundle)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    refused = lopa_export("verify", tmp_path, "--quiet")
    assert (refused.returncode, refused.stderr.count("error: ")) == (2, 1)


def test_verbose_prints_versions_devices_and_options(tiny_bundle: Path) -> None:
    done = lopa_export("generate", tiny_bundle, PROMPT, "--threads", 1, "-v")
    assert "on cpu with 1 threads" in done.stderr
    assert "branches=" in done.stderr
    assert "INFO" not in lopa_export("generate", tiny_bundle, PROMPT).stderr


def test_quiet_and_verbose_exclude_each_other() -> None:
    done = lopa_export("-q", "doctor", "-v")
    assert (done.returncode, "choose one" in done.stderr) == (2, True)


def test_little_is_imported_before_there_is_something_to_do() -> None:
    heavy = "{'numpy', 'onnxruntime', 'rich', 'tokenizers', 'torch', 'jinja2', 'lopa.runtime'}"
    for arguments in (["--version"], ["--help"], ["nonsense"]):
        code = (
            "import sys\nfrom lopa.cli.main import main\n"
            "assert not {'click', 'lopa.cli.commands'} & set(sys.modules)\n"
            f"try: main({arguments})\nexcept SystemExit: pass\nassert not {heavy} & set(sys.modules), sys.modules"
        )
        done = ended(sys.executable, "-c", code, stdout=subprocess.PIPE)
        assert done.returncode == 0, done.stderr


def test_escapes_match_json() -> None:
    open_streams()
    text = "é😀\ud800"
    assert json.loads('"' + text.encode("ascii", ESCAPED).decode() + '"') == text
