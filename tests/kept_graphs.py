"""Graphs of tests: ONNX Runtime opens them with one thread, and those of shared bundles stay open between tests.

Opening graphs would take a tenth of the time of the tests. By default, ONNX Runtime has a thread per core. They spin
while they wait for each other, so such a graph is several times slower beside other test processes. Tests that observe
the openings get what the product requests.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime as ort

from lopa.runtime.sessions import onnxruntime_graph
from lopa.runtime.sessions.onnxruntime_graph import _Threading

MAX_KEPT = 16
_shared_graph = onnxruntime_graph._shared_graph
_session_class = ort.InferenceSession
_kept: list[ort.InferenceSession] = []


def keep_graphs(folder: Path) -> None:
    """Keep the last graphs of the bundles in `folder` open."""

    def kept_graph(
        graph: Path, weights: Path, providers: Any, threads: _Threading, opening: Callable[..., Any], *, exact: bool
    ) -> ort.InferenceSession:
        if ort.InferenceSession is not _session_class:
            _kept.clear()
        elif threads.threads is None:
            threads = replace(threads, threads=1)
        found = _shared_graph(graph, weights, providers, threads, opening, exact=exact)
        if type(found) is _session_class and graph.parents[1] == folder:
            _kept[:] = [*[each for each in _kept if each is not found][1 - MAX_KEPT :], found]
        return found

    onnxruntime_graph._shared_graph = kept_graph


def close_graphs() -> None:
    _kept.clear()
