"""Operators as Triton kernels, with launchers for torch tensors. Importing these modules needs torch and Triton."""
