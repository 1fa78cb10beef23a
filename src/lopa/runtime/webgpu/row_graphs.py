"""ONNX graphs that read, write, copy and clear pieces of an array on a device.

An array is a table of int32 words [N, U] whose rows are the unit of every access. ONNX Runtime gives no other access to
part of a buffer. Graphs that change an array write only the listed rows, if their output is bound to the same memory as
their input `target`.
"""

import numpy as np

from lopa.runtime.graph_encoding import encoded_model, encoded_node, encoded_value

SOURCE, TARGET, ROWS, FROM, TO = "source", "target", "rows", "from", "to"
"""Tables, rows [K, U], and numbers of rows: `from` int64 [K] in the source, `to` int64 [K, 1] in the target."""
CHANGED = "changed"
"""Output of graphs that change `target`."""

_SOURCE = encoded_value(SOURCE, np.int32, ("M", "U"))
_TARGET = encoded_value(TARGET, np.int32, ("N", "U"))
_ROWS = encoded_value(ROWS, np.int32, ("K", "U"))
_FROM = encoded_value(FROM, np.int64, ("K",))
_TO = encoded_value(TO, np.int64, ("K", 1))
_CHANGED = encoded_value(CHANGED, np.int32, ("N", "U"))
_READ = encoded_node("Gather", (SOURCE, FROM), ROWS)
_WRITE = encoded_node("ScatterND", (TARGET, TO, ROWS), CHANGED)


def read_graph() -> bytes:
    """Return the graph that reads rows of a table."""
    return encoded_model([_READ], [_SOURCE, _FROM], [_ROWS])


def write_graph() -> bytes:
    """Return the graph that writes rows to a table."""
    return encoded_model([_WRITE], [_TARGET, _TO, _ROWS], [_CHANGED])


def copy_graph() -> bytes:
    """Return the graph that copies rows of one table to another."""
    return encoded_model([_READ, _WRITE], [_TARGET, _SOURCE, _FROM, _TO], [_CHANGED])


def clear_graph() -> bytes:
    """Return the graph that fills rows of a table with zeros."""
    old, zeros = encoded_node("Gather", (TARGET, FROM), "old"), encoded_node("Sub", ("old", "old"), ROWS)
    return encoded_model([old, zeros, _WRITE], [_TARGET, _FROM, _TO], [_CHANGED])
