"""Strategies of installed packages, declared by an entry point in the group "lopa.strategies"."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import pytest
from tests.python_path import python_path
from tests.runtime.strategy.agreement import EXAMPLE, agreement_of_example, params_with, steps_of

from lopa.runtime import BadInputError, Decoder
from lopa.runtime.strategy import STRATEGIES, register_strategy, strategy_from_name, strategy_names
from lopa.runtime.strategy import installed as registry

ROOT = Path(__file__).parents[3]
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


DECODE = """
import sys
from lopa.runtime import Decoder
from lopa.runtime.strategy import strategy_from_name, strategy_names
from tests.runtime.strategy.agreement import params_with, steps_of

bundle, *prompt = sys.argv[1:]
assert strategy_names()[-1] == "agreement"
assert "agreement_strategy" not in sys.modules
params = params_with(strategy_from_name("agreement"), {}, branches=3, max_new_tokens=32)
with Decoder.open(bundle, threads=1) as decoder:
    for step in steps_of(decoder, tuple(map(int, prompt)), params):
        print(*step.unmasked.positions, "|", *step.unmasked.tokens)
"""


@pytest.mark.slow
def test_the_example_is_installed_and_decodes(
    decoder: Decoder, prompt: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is built without a network, and its name is known before its module is imported."""
    source, target = Path(copytree(EXAMPLE, tmp_path / "source")), tmp_path / "target"
    pip = ["install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", *pip, str(source)], check=True, cwd=tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", DECODE, str(decoder.bundle.path), *map(str, prompt)],
        env={"PYTHONPATH": python_path(target, ROOT, ROOT / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(registry, "_registered", {})
    own = agreement_of_example()
    register_strategy(own)
    expected = [
        " ".join(map(str, [*step.unmasked.positions, "|", *step.unmasked.tokens]))
        for step in steps_of(decoder, prompt, params_with(own, {}, branches=3, max_new_tokens=32))
    ]
    assert done.stdout.splitlines() == expected
