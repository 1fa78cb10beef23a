"""Twins of standard graphs in the form that is fastest in ONNX Runtime on CPUs. Each pass has its own file."""
