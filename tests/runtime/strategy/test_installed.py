"""Strategies of installed packages, declared by an entry point in the group "lopa.strategies"."""

import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.runtime.strategy.agreement import EXAMPLES

from lopa.runtime import BadInputError
from lopa.runtime.strategy import STRATEGIES, strategy_from_name, strategy_names
from lopa.runtime.strategy import installed as registry

MINE = 'from lopa.runtime.strategy import Strategy\nMINE = Strategy(name="{name}", summary="mine")\n'


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, str], None]]:
    """Return a function that installs a package of one module, given the entry point's name, its value and the module's
    text."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.syspath_prepend(tmp_path)
    modules = list[str]()

    def installed(name: str, value: str, text: str) -> None:
        module = value.partition(":")[0]
        modules.append(module)
        about = tmp_path / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[lopa.strategies]\n{name} = {value}\n")
        (tmp_path / f"{module}.py").write_text(text)
        registry._entry_points.cache_clear()

    yield installed
    for module in modules:
        sys.modules.pop(module, None)
    registry._entry_points.cache_clear()


def test_a_package_is_imported_when_its_strategy_is_chosen(install: Callable[[str, str, str], None]) -> None:
    install("mine", "strategy_of_mine:MINE", MINE.format(name="mine"))
    assert strategy_names() == (*STRATEGIES, "mine")
    assert "strategy_of_mine" not in sys.modules
    found = strategy_from_name("mine")
    assert (found.name, found.summary) == ("mine", "mine")
    assert strategy_from_name("mine") is found
    assert strategy_names() == (*STRATEGIES, "mine")


@pytest.mark.parametrize(
    ("name", "value", "text", "message"),
    [
        ("mine", "broken_one:MINE", "import no_such_module", "cannot be imported: No module named 'no_such_module'"),
        ("mine", "broken_one:MINE", "raise OSError('a disk')", "cannot be imported: a disk"),
        ("mine", "broken_one:MINE", "this is no Python", "cannot be imported: invalid syntax"),
        ("mine", "broken_one:OTHER", MINE.format(name="mine"), "cannot be imported: module 'broken_one' has no"),
        ("mine", "broken_one:MINE", "MINE = 5", "is 5\n  expected: a Strategy with the entry point's name"),
        ("mine", "broken_one:MINE", MINE.format(name="other"), "expected: a Strategy with the entry point's name"),
        ("mine", "broken_one:MINE", MINE.format(name="mine")[:-2] + ", cut=5)", "cut is 5\n  expected: functions as"),
        ("mine", "broken_one:MINE", MINE.format(name="mine")[:-2] + ", options=[])", "options is []\n  expected: "),
        ("mine", "broken_one:MINE", MINE.format(name="mine").replace('"mine")', "5)"), "summary is 5\n  expected: "),
    ],
)
def test_a_bad_entry_point_is_reported_with_its_package(
    install: Callable[[str, str, str], None], name: str, value: str, text: str, message: str
) -> None:
    install(name, value, text)
    assert strategy_names() == (*STRATEGIES, "mine")
    for _ in range(2):
        with pytest.raises(BadInputError) as caught:
            strategy_from_name("mine")
        assert f"strategy mine: entry point {value} of broken_one" in str(caught.value)
        assert message in str(caught.value)
    assert strategy_from_name("lopa") is STRATEGIES["lopa"]


def test_built_in_strategies_cannot_be_replaced(install: Callable[[str, str, str], None]) -> None:
    install("lopa", "strategy_of_mine:MINE", MINE.format(name="lopa"))
    assert strategy_names() == tuple(STRATEGIES)
    assert strategy_from_name("lopa") is STRATEGIES["lopa"]
    assert "strategy_of_mine" not in sys.modules


@pytest.mark.parametrize("example", ["agreement", "careful"])
def test_an_example_declares_its_strategy(install: Callable[[str, str, str], None], example: str) -> None:
    folder = EXAMPLES / f"{example}_strategy"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert "dependencies" not in project["project"], "the checkout is no package of an index"
    [(name, value)] = project["project"]["entry-points"][registry.ENTRY_POINTS].items()
    [module] = project["tool"]["setuptools"]["py-modules"]
    install(name, value, (folder / f"{module}.py").read_text())
    assert strategy_from_name(name).name == name
