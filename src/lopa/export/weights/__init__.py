"""Weights of a bundle: the plan of its tensors, quantization, and the file writer."""
