"""Fuzzer that feeds mutated inputs of every kind to the program (docs/fuzzing.md)."""
