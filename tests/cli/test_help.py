"""The help of lopa-export, its answers to typing errors, and completion in a shell."""

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from tests.cli.command import lopa_export
from tests.cli.test_main import SCRIPT

from lopa.cli.commands import COMMANDS, GROUPS, cli
from lopa.cli.measure.bench import SUBCOMMANDS
from lopa.cli.options.decoding_options import option_flags
from lopa.runtime.strategy import STRATEGIES, Option, Strategy, installed, register_strategy


def shown(*arguments: str) -> str:
    done = lopa_export(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_lists_every_command_in_full_and_in_order(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = shown("--help")
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


def sections_of(text: str) -> dict[str, list[str]]:
    """Return the first flag of each row of a help text, by the section's title."""
    titles = re.findall(r"^([A-Z][\w ]+):$", text, re.MULTILINE)
    parts = re.split(r"^[A-Z][\w ]+:$", text, flags=re.MULTILINE)[1:]
    flags = [re.findall(r"^  (?:-., )?(--[a-z-]+)", part, re.MULTILINE) for part in parts]
    return {title: found for title, found in zip(titles, flags, strict=True) if found}


def test_all_help_of_generate_has_the_options_of_every_strategy() -> None:
    sections = sections_of(shown("generate", "--help-all"))
    for strategy in STRATEGIES.values():
        flags = ["--" + option.name.replace("_", "-") for option in strategy.options]
        assert sections.get(f"Strategy {strategy.name}", []) == flags
    listed = [flag for flags in sections.values() for flag in flags]
    assert sorted(listed) == sorted(set(listed))
    assert {option.opts[0] for option in option_flags().values()} < set(listed)


@pytest.mark.parametrize("name", [*COMMANDS, *(f"bench {each}" for each in SUBCOMMANDS)])
def test_help_shows_at_most_20_options_and_help_all_every_one(name: str) -> None:
    basic, full = (sections_of(lopa_export(*name.split(), level).stdout) for level in ("--help", "--help-all"))
    if name == "bench":  # a group has no --help-all
        return
    command = command_of(name)
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert sum(map(len, basic.values())) <= 20
    assert sum(map(len, full.values())) == len(options) + 1  # the other row is --help itself


def command_of(name: str) -> click.Command:
    module = COMMANDS.get(name) or SUBCOMMANDS[name.removeprefix("bench ")]
    command = importlib.import_module(module).command
    assert isinstance(command, click.Command)
    return command


def test_all_help_has_the_options_of_installed_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_registered", {})  # so that other tests do not see this strategy
    vote = Option(name="votes", help="Number of votes.", default=3)
    register_strategy(Strategy(name="other_for_help", summary="a strategy for tests", options=(vote,)))
    text = lopa_export("generate", "--help-all").stdout
    section = text.partition("Strategy other_for_help:\n")[2].partition("\n\n")[0]
    assert "A strategy for tests." in section
    assert re.search(r"--strategy-option votes=INT +Number of votes\.  \[default: 3\]", text)


def test_an_argument_too_many_is_the_value_of_the_missing_option() -> None:
    done = lopa_export("onnx", "checkpoint", "out")
    assert done.returncode == 2
    assert "missing option '-o': write -o before 'out'" in done.stderr
    assert "missing option '-o' / '--output'\n" in lopa_export("onnx", "checkpoint").stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *[("inspct", "inspect"), ("generte", "generate"), ("bnech", "bench"), ("Chat", "chat")],
        *[("export", "onnx"), ("convert", "onnx"), ("quantize", "onnx .*--quantize int8"), ("run", "generate")],
        *[("score", "generate .*--choices"), ("plot", "bench quality .*--plot")],
    ],
)
def test_a_typo_gets_a_suggestion(typed: str, meant: str) -> None:
    done = lopa_export(typed)
    assert done.returncode == 2
    assert re.search(rf"error: no such command '{typed}'\n.*\n  what to do: did you mean .*{meant}", done.stderr)
    usage = "lopa-export [OPTIONS] COMMAND [ARGS]..."
    expected = f"error: no such command 'xyz'\n  expected: {usage}\n  what to do: see lopa-export --help\n"
    assert lopa_export("xyz").stderr == expected


def test_an_error_of_an_option_names_its_command_and_the_nearest_option() -> None:
    assert "what to do: see lopa-export generate --help" in lopa_export("generate", "bundle", "--stop").stderr
    nearest = lopa_export("generate", "bundle", "x", "--branch", "3").stderr
    assert nearest.endswith("did you mean '--branches'?\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_every_shell(shell: str) -> None:
    assert "_LOPA_EXPORT_COMPLETE" in shown("completion", shell)


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
        # compopt works only while a key is handled. The test sees that folders were requested.
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
    assert completed("lopa-export generate --max-ne") == ["--max-new-tokens"]
    assert completed("lopa-export generate bundle --device c") == ["cpu", "cuda:0", "cuda:0:tf32"]
    assert "dirnames" in completed("lopa-export generate bun")


def test_the_shell_is_the_users_or_the_requested_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert shown("completion") == shown("completion", "fish")
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    refused = lopa_export("completion")
    assert (refused.returncode, "lopa-export completion bash" in refused.stderr) == (2, True)
