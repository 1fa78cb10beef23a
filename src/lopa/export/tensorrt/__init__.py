"""Build of engines with TensorRT."""
