"""Operators of ONNX Runtime for the device `cuda`: a C++ library that launches kernels of lopa.plugins.kernels, which
were compiled ahead of time."""
