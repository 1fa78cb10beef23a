"""The commands that make, check, show and change bundles: onnx, verify, inspect, edit, triton."""
