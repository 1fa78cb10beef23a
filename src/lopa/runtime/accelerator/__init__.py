"""Sessions with their caches in a device's memory: what CUDA, TensorRT and Ascend share."""
