"""The core (plan, state, strategy, decoding) needs only numpy and the standard library."""

import subprocess
import sys

_IMPORT_CORE = """
import importlib, pkgutil, sys

before = set(sys.modules)
for name in ("options", "state", "strategy", "decoding"):
    package = importlib.import_module(f"lopa.runtime.{name}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for name in sorted(set(sys.modules) - before):
    print(name)
"""


def modules_of_core() -> list[str]:
    """Return the modules that importing every module of the core loads, in a separate process."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", _IMPORT_CORE], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_the_core_loads_numpy_and_the_standard_library_alone() -> None:
    loaded = modules_of_core()
    assert {
        "lopa.runtime.decoding.lopa_loop",
        "lopa.runtime.state.packed_rows",
        "lopa.runtime.strategy.strategies",
    } <= {*loaded}
    others = {name.partition(".")[0] for name in loaded} - {"lopa", "numpy"} - sys.stdlib_module_names
    assert not others
