"""Export of checkpoints to bundles. Imports torch, ONNX and the runtime's contract; the runtime never imports it."""
