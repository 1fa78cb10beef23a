"""Layers: import-linter finds violations of layers.toml, folders are packages, few strings name modules."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
LAYERS = PROJECT / "tools" / "checks" / "layers.toml"
TOPS = (Path("src", "lopa"), Path("tools"))


def linted(layers: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--config", layers, "--no-cache"]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


def contracts_of(text: str, *names: str) -> str:
    """Return a configuration with the contracts of these names only, for speed."""
    head, *contracts = text.split("[[tool.importlinter.contracts]]\n")
    chosen = [each for each in contracts if re.match(rf'name = "({"|".join(names)})"', each)]
    assert len(chosen) == len(names)
    return "[[tool.importlinter.contracts]]\n".join([head, *chosen])


@pytest.mark.parametrize(
    ("contract", "was", "changed", "found"),
    [
        (
            "Layers of the runtime",
            '    "engine",\n    "decoder",\n',
            '    "decoder",\n    "engine",\n',
            r"lopa\.runtime\.decoder is not allowed to import lopa\.runtime\.engine|"
            r"lopa\.runtime\.engine is not allowed to import lopa\.runtime\.decoder",
        ),
        (
            "Packages",
            '    "lopa.export",\n    "lopa.plugins",\n    "lopa.runtime",\n',
            '    "lopa.runtime",\n    "lopa.export",\n    "lopa.plugins",\n',
            r"lopa\.export is not allowed to import lopa\.runtime",
        ),
        ("Layers of the export", '    "checkpoint",\n', "", r"lopa\.export\.checkpoint"),
    ],
    ids=["a layer above", "a package above", "a module in no layer"],
)
def test_a_forbidden_import_is_found(contract: str, was: str, changed: str, found: str, tmp_path: Path) -> None:
    """Check the source against contracts that it violates."""
    text = contracts_of(LAYERS.read_text(encoding="utf-8"), contract)
    assert was in text
    (tmp_path / "layers.toml").write_text(text.replace(was, changed), encoding="utf-8")
    done = linted(tmp_path / "layers.toml")
    assert done.returncode == 1
    assert re.search(found, done.stdout), done.stdout
    assert f"{contract} BROKEN" in done.stdout


def modules() -> Iterator[Path]:
    """Yield the Python files of every package, relative to the project."""
    for top in TOPS:
        yield from (path.relative_to(PROJECT) for path in sorted((PROJECT / top).rglob("*.py")))


def dotted(path: Path) -> str:
    """Return the dotted module name of a file."""
    return ".".join(path.with_suffix("").parts).removeprefix("src.")


def test_folders_are_packages_and_not_deep() -> None:
    for path in modules():
        assert len(dotted(path).split(".")) <= 4, f"{path} lies deeper than lopa.package.package.file"
        assert (PROJECT / path.parent / "__init__.py").is_file(), f"{path.parent} is not found by pkgutil"


def named_modules(path: Path) -> set[str]:
    """Return the modules of the project, except itself, that a file names in strings, complete or joined from parts."""
    text = (PROJECT / path).read_text(encoding="utf-8")
    strings = {
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {each for each in strings - {dotted(path)} if re.fullmatch(r"(lopa|tools)\.[\w.]+", each)}


def test_modules_are_named_in_strings_where_a_backend_is_chosen() -> None:
    """No other file does, since import-linter sees no import behind a string."""
    found = {str(path) for path in modules() if named_modules(path)}
    assert found == {
        "src/lopa/__init__.py",  # the table of public names, whose imports type checkers read
        "src/lopa/runtime/device_families.py",  # the table of backends
        "src/lopa/runtime/sessions/session.py",  # the module of pipelines
        "src/lopa/runtime/cuda_kernels/kernel_archive.py",  # the program that compiles the kernels
        "src/lopa/runtime/grammar/helper.py",  # the program of the helper process
        "src/lopa/cli/commands.py",  # the table of commands
        "src/lopa/cli/measure/bench.py",  # the table of benchmarks
        # Names that are compared or passed on and import nothing:
        "src/lopa/export/graph/experts.py",  # the domain of a traced operator
        "src/lopa/export/cuda_graph/nodes.py",  # the domain of operators in graphs
        "src/lopa/runtime/cpu_kernels/kernel_library.py",  # the domain of operators in graphs
        "src/lopa/runtime/cuda_kernels/cuda_library.py",  # the same domain
        "src/lopa/runtime/strategy/installed.py",  # the name of a group of entry points
        "src/lopa/serve/tracing/request_spans.py",  # names of attributes
        "src/lopa/cli/main.py",  # names of a logger, and of a module that may have been imported
        "tools/measure.py",  # the table of measurements
        "tools/release/__main__.py",  # the program that compiles the kernels
        "tools/gpu/programs.py",  # the name of the program to start
        "tools/serving/server.py",  # the same
        "tools/serving/soak.py",  # the same
    }
