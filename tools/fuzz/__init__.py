"""The fuzzer: altered input of every kind against the program (docs/fuzzing.md)."""
