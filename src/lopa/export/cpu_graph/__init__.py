"""Twins of standard graphs in the form that is fastest in ONNX Runtime on a CPU: one file for each pass."""
