"""Trace cache for processes that tests start (kept_traces.py), active with this folder on their PYTHONPATH.

Python imports this module when it starts. It does not import torch earlier than the process itself does.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_TRACES = "lopa.export.graph.torch_graph"


class _KeepTraces:
    """Import hook that finds the tracing module normally and installs the cached traces in it."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != _TRACES:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.loader is not None
        execute = found.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            from tests.export.kept_traces import kept_traces

            module.traced_graph = kept_traces(Path(os.environ["KEPT_TRACES"]))  # type: ignore[attr-defined]

        found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


sys.meta_path.insert(0, _KeepTraces())  # type: ignore[arg-type]
