"""Sessions with caches in device memory, shared by CUDA, TensorRT and Ascend."""
