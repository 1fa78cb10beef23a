"""CUDA: calls, memory, graphs, and ONNX Runtime's CUDA provider."""
