"""Kernels that an engine may load for operators of the contract, each with a readable numpy reference in tests/plugins."""
