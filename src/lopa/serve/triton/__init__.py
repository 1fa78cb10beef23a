"""Bundle as a model of NVIDIA's Triton Inference Server: its repository and the model's code. This package does not
depend on HTTP."""
