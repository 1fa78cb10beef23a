"""The help of lopa-export, what it says of a typo, and completion in a shell."""

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from tests.cli.test_main import SCRIPT, ended

from lopa.cli.commands import COMMANDS, GROUPS, cli


def shown(*arguments: str, columns: int = 80) -> str:
    done = ended(*SCRIPT, *arguments, stdout=subprocess.PIPE, env={**os.environ, "COLUMNS": str(columns)})
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_lists_every_command_in_full_and_in_order(columns: int) -> None:
    text = shown("--help", columns=columns)
    assert "..." not in text.split("\n", 1)[1]
    assert max(map(len, text.splitlines())) <= columns
    assert re.findall(r"^  ([a-z]+)  +[A-Z]", text, re.MULTILINE) == list(COMMANDS)
    flat = re.sub(r"\s+", " ", text)
    for commands in GROUPS.values():
        assert all(help_text in flat for help_text in commands.values())
    for code in ("0 ", "1 ", "2 ", "3 ", "70 ", "130 ", "141 "):
        assert re.search(rf"^  {code} +\S", text, re.MULTILINE)
    assert "docs/reference/glossary.md" in flat


def test_every_command_is_there_and_has_the_common_options() -> None:
    context = click.Context(cli)
    for name, module in COMMANDS.items():
        if module == "lopa.cli.main":
            continue
        command = cli.get_command(context, name)
        assert command is importlib.import_module(module).command
        assert (command is not None, command and command.name) == (True, name)
        flags = [flag for parameter in command.params for flag in parameter.opts]  # type: ignore[union-attr]
        assert all(flags.count(flag) == 1 for flag in ("-q", "--quiet", "-v", "--verbose"))


@pytest.mark.parametrize("arguments", [["--version"], ["onnx", "-h"]])
def test_other_ways_to_ask(arguments: list[str]) -> None:
    done = ended(*SCRIPT, *arguments, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_options_of_generate_are_in_groups() -> None:
    text = shown("generate", "--help")
    titles = re.findall(r"^([A-Z][a-z ]+):$", text, re.MULTILINE)
    assert titles == ["Input and output", "Device", "Decoding", "Other"]
    parts = dict(zip(titles, re.split(r"^[A-Z][a-z ]+:$", text, flags=re.MULTILINE)[1:], strict=True))
    for title, flag in (
        ("Input and output", "--prompts "),
        ("Device", "--threads "),
        ("Decoding", "--max-new-tokens "),
        ("Decoding", "--reference "),
        ("Other", "--help "),
    ):
        assert [each for each in titles if re.search(rf"^  (?:-., )?{flag}", parts[each], re.MULTILINE)] == [title]


def test_alone_it_shows_its_help() -> None:
    done = ended(*SCRIPT, stdout=subprocess.PIPE)
    assert done.returncode == 2
    assert "Decode:" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("inspct", "inspect"), ("generte", "generate"), ("bnech", "bench"), ("Chat", "chat")]
)
def test_a_typo_is_told_what_was_meant(typed: str, meant: str) -> None:
    done = ended(*SCRIPT, typed)
    assert done.returncode == 2
    assert re.search(rf"No such command '{typed}'. Did you mean .*{meant}", done.stderr)
    assert "Did you mean" not in ended(*SCRIPT, "xyz").stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_every_shell(shell: str) -> None:
    assert "_LOPA_EXPORT_COMPLETE" in shown("completion", shell)


def test_the_shell_is_that_of_the_user_or_asked_for() -> None:
    environment = {**os.environ, "SHELL": "/usr/bin/fish"}
    assert ended(*SCRIPT, "completion", stdout=subprocess.PIPE, env=environment).stdout == shown("completion", "fish")
    refused = ended(*SCRIPT, "completion", env={**environment, "SHELL": "/bin/tcsh"})
    assert (refused.returncode, "lopa-export completion bash" in refused.stderr) == (2, True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_folders_and_devices(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle.txt").touch()
    script = tmp_path / "completion.bash"
    script.write_text(shown("completion", "bash"))
    folder = str(Path(SCRIPT[0]).parent)

    def completed(line: str) -> list[str]:
        words = line.split(" ")
        quoted = " ".join(f"'{word}'" for word in words)
        # compopt works while a key is handled only; that it was asked for folders is what can be seen.
        program = (
            f'compopt() {{ echo "compopt $*"; }}; . {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; '
            f'_lopa_export_completion lopa-export; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
        )
        assert done.stderr == ""
        return done.stdout.split("\n")[:-1]

    assert completed("lopa-export ge") == ["generate"]
    assert set(completed("lopa-export ")) >= set(COMMANDS)
    assert completed("lopa-export generate --max-n") == ["--max-new-tokens"]
    assert completed("lopa-export generate bundle --device c") == ["cpu", "cuda:0"]
    assert completed("lopa-export generate bundle --strategy d") == ["d2f", "dream"]
    assert "dirnames" in completed("lopa-export generate bun")
