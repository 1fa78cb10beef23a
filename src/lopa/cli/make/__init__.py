"""The commands that make a bundle, check it and show it: onnx, verify, inspect."""
