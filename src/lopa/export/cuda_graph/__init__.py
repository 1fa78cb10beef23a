"""Twin of the standard graph for ONNX Runtime's CUDA provider, in operators of domain lopa.cuda."""
