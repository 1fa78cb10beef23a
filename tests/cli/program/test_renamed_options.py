"""Former names of options: accepted with a warning, on the command line and in the environment."""

import importlib
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from lopa.cli.commands import COMMANDS
from lopa.cli.options.decoding_options import defaults_from_texts
from lopa.cli.program.environment import EnvironmentCommand
from lopa.cli.program.grouped_command import GroupedCommand
from lopa.cli.program.grouped_option import option
from lopa.cli.program.renamed_options import RENAMED_FLAGS, FormerOption

received: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def _nothing_received() -> Iterator[None]:
    received.clear()
    yield
    received.clear()


@click.command(cls=EnvironmentCommand, prefix="LOPA_TEST")
@option("--max-num-seqs", type=int, default=8)
@option("--unmask-first-masked/--no-unmask-first-masked", default=None)
@option("--remask-limit", type=int, multiple=True)
def command(**values: object) -> None:
    received.append(values)


def run(*arguments: str, **environment: str) -> str:
    done = CliRunner().invoke(command, arguments, env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stderr


def test_a_former_name_works_with_a_warning() -> None:
    warning = run("--slots", "3", "--no-decide-frontier", "--take-back-limit=1", "--take-back-limit", "2")
    assert received == [{"max_num_seqs": 3, "unmask_first_masked": False, "remask_limit": (1, 2)}]
    assert warning.splitlines() == [
        "warning: --slots is deprecated; use --max-num-seqs",
        "warning: --decide-frontier is deprecated; use --unmask-first-masked",
        "warning: --take-back-limit is deprecated; use --remask-limit",
    ]
    assert run("--max-num-seqs", "4") == ""
    assert received[-1] == {"max_num_seqs": 4, "unmask_first_masked": None, "remask_limit": ()}


def test_the_present_name_wins() -> None:
    run("--slots", "3", "--max-num-seqs", "4")
    assert received[0]["max_num_seqs"] == 4


def test_former_variables_work_with_a_warning() -> None:
    assert run(LOPA_TEST_SLOTS="3") == "warning: LOPA_TEST_SLOTS is deprecated; use LOPA_TEST_MAX_NUM_SEQS\n"
    assert run(LOPA_TEST_SLOTS="3", LOPA_TEST_MAX_NUM_SEQS="4") == ""
    run("--slots", "5", LOPA_TEST_MAX_NUM_SEQS="4")
    assert [each["max_num_seqs"] for each in received] == [3, 4, 5]


def test_a_bad_value_names_the_option() -> None:
    done = CliRunner().invoke(command, ["--slots", "many"])
    assert done.exit_code == 2
    assert "--max-num-seqs" in done.stderr


def test_every_former_name_belongs_to_a_command_and_is_hidden() -> None:
    found = set()
    for name, module in COMMANDS.items():
        made = importlib.import_module(module).command
        former = [each for each in made.params if isinstance(each, FormerOption)]
        found |= {each.former for each in former}
        assert all(each.hidden for each in former)
        assert isinstance(made, GroupedCommand) or name == "bench"
    assert found == set(RENAMED_FLAGS)
    assert all(former != present for former, present in RENAMED_FLAGS.items())


def test_a_former_name_of_a_default_works_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert defaults_from_texts(["decide-frontier=true", "per_step=3"]) == {
        "unmask_first_masked": True,
        "tokens_per_step": 3,
    }
    assert capsys.readouterr().err.splitlines() == [
        "warning: decide_frontier is deprecated; use unmask_first_masked",
        "warning: per_step is deprecated; use tokens_per_step",
    ]
