"""Fuzzer that feeds mutated inputs of every kind to the program (tools/fuzz/README.md)."""
