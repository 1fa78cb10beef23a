"""A bundle as a model of NVIDIA's Triton Inference Server: the repository, and the code of the model. Knows no HTTP."""
