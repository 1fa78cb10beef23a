"""Graphs of shared bundles stay open between tests. Opening them again would take a tenth of the time of the tests."""

from pathlib import Path
from typing import Any

import onnxruntime as ort

from lopa.runtime.sessions import onnxruntime_graph

MAX_KEPT = 16
_shared_graph = onnxruntime_graph._shared_graph
_session_class = ort.InferenceSession
_kept: list[ort.InferenceSession] = []


def keep_graphs(folder: Path) -> None:
    """Keep the last graphs of bundles in `folder` open, which sessions of a process share, until a test observes ONNX
    Runtime's openings.
    """

    def kept_graph(graph: Path, *arguments: Any, **options: Any) -> ort.InferenceSession:
        if ort.InferenceSession is not _session_class:
            _kept.clear()
        found = _shared_graph(graph, *arguments, **options)
        if type(found) is _session_class and graph.parents[1] == folder:
            _kept[:] = [*[each for each in _kept if each is not found][1 - MAX_KEPT :], found]
        return found

    onnxruntime_graph._shared_graph = kept_graph


def close_graphs() -> None:
    _kept.clear()
