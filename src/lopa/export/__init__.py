"""Checkpoint in, bundle out. Knows torch and ONNX; imports the runtime's contract and manifest, never the reverse."""
