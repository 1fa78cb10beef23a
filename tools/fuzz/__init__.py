"""The fuzzer: altered input of every kind against the program (tools/fuzz/README.md)."""
