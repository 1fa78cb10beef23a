"""ONNX graphs from model dimensions: torch modules, tracing, passes, and the rules of the portable dialect."""
