"""Products with int8 and int4 matrices for the device `cpu`: C++ operators of ONNX Runtime that read a bundle's mapped
file in place."""
