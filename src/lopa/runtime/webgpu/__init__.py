"""Sessions on any GPU that WebGPU reaches, by ONNX Runtime's WebGPU plug-in."""
