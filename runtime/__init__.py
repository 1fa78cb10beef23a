"""The light runtime: opens bundles, runs their engines, decodes with LoPA.

Knows numpy, onnxruntime and tokenizers. Does not know torch, transformers or onnx, nor how a bundle is made.
"""
