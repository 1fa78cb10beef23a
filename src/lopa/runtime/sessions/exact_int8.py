"""Exact products of 8-bit integers in ONNX Runtime on processors without VNNI."""

import onnxruntime as ort

_PRECISION = "session.x64quantprecision"
"""Option that makes ONNX Runtime multiply unsigned with unsigned bytes on these processors. By default it adds pairs of
products in 16 bits there, and sums beyond this range are cut off."""


def multiply_exactly(options: ort.SessionOptions) -> None:
    """Let sessions with `options` compute exact products of 8-bit integers. Processors with VNNI always do.

    Graphs that only dequantize such matrices, as portable ones do, must not get this option. With it, ONNX Runtime
    1.31.1 gives such a matrix one zero point for all channels on these processors, and then refuses to run it.
    """
    options.add_session_config_entry(_PRECISION, "1")
