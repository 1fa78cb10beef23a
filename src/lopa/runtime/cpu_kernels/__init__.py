"""Products with int8 and int4 matrices, and layers of a mixture of experts, for the device `cpu`: C++ operators of ONNX
Runtime that read a bundle's mapped file in place."""
