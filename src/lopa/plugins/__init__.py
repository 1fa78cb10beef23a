"""Kernels that an engine may load for operators of the contract. tests/plugins has a numpy reference of each."""
