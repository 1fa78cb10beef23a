"""Operators as Triton kernels, compiled ahead of time. Importing these modules needs Triton."""
