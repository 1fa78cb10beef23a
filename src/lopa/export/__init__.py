"""Export of checkpoints to bundles.

The package imports torch, ONNX and the runtime's contract. The runtime never imports it.
"""
