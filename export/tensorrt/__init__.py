"""Builds engines with TensorRT."""
